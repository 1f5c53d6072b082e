"""Dry runs of many requests by one process.

    python -P -m workers.probe.dry [--limit-s 45] [--wall-s 135] [--jobs 2] <requests >answers

A request is a line of JSON: ``{"id", "class", "spec", "micro_batch_sizes",
"accumulation_counts"}`` (``workers/probe/spec.py``); those with one ``class``, which may be left
out, share the limits of time, and those of shallow copies may have ``copies``. Each is answered by
a line as soon as it is done, in any order: its ``id``, and either ``trace``
(``workers/probe/dry/trace.py``; null where another request of the copies runs the whole model) or
``error``. The exit code is 0 when all were answered, errors among them, and 1 when the process that
started this one has gone, or nobody reads the answers: then dry runs are ended at once.
"""

import argparse
import gc
import importlib
import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

# Modules that libraries import late, and every dry run needs; or are left to it, if missing.
MODULES = ("transformers.models.llama.modeling_llama",)
OF_ADAPTERS = ("peft", "bitsandbytes")


def main() -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m workers.probe.dry", description=__doc__)
    parser.add_argument("--limit-s", type=float, default=90.0, help="CPU time of a class")
    parser.add_argument("--wall-s", type=float, default=135.0, help="for what hangs; given twice")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    # libraries print to stderr: stdout is for answers alone
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    starter, poller = os.getppid(), select.poll()
    poller.register(answers.fileno(), 0)  # errors and hang-ups alone

    def is_heard() -> bool:
        return os.getppid() == starter and not poller.poll(0)

    preload()  # torch takes seconds: parse first
    from workers.probe.dry.server import Server

    server = Server(
        sys.stdin.fileno(),
        write,
        is_heard=is_heard,
        limit_s=options.limit_s,
        wall_s=options.wall_s,
        jobs=options.jobs,
        since=started,
        prepare=preload_for,
    )
    try:
        server.run()
    except BrokenPipeError:
        os._exit(1)  # there is nothing to flush, and nobody to flush it to
    return 0


def preload(names: Sequence[str] = MODULES) -> None:
    """Import what every dry run needs, or those of some requests, once, before any is forked."""
    gc.disable()  # nothing imported is garbage, and looking for some takes a tenth of the time
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    # Keep transformers and peft from importing torchao, for quantized models that nobody trains
    # here: that takes a second and prints warnings. The 8-bit optimizer imports it after this.
    hides = "torchao" not in sys.modules
    if hides:
        hidden: dict[str, object] = {"torchao": None}
        sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
        importlib.import_module("workers.probe.dry.server")
        # peft asks once in a process, layer by layer
        if (peft := sys.modules.get("peft.import_utils")) is not None:
            peft.is_torchao_available()
    finally:
        if hides:
            sys.modules.pop("torchao", None)
    gc.freeze()  # nothing imported is ever freed: spare each dry run the search
    gc.enable()


def preload_for(line: str) -> None:
    """Import what a request needs beside, before it is forked: others will need it too."""
    if '"adapter"' in line and "peft" not in sys.modules:
        preload(OF_ADAPTERS)


if __name__ == "__main__":
    raise SystemExit(main())
