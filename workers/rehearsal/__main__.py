"""Rehearses a script: each rank that is asked for, one after another.

    python -P -m workers.rehearsal --order FILE --out FILE [--watch-fd N]

The order is JSON, as :func:`tuner.client.rehearse.rehearse` writes it; ``--out`` gets an object
with the ranks' records, or with the error for which there are none.
"""

import argparse
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tuner.environment import without_secrets
from tuner.errors import ProbeError, TunerError
from tuner.machine import end_first_for_memory, shows_gpu, why_no_standin
from workers.measuring.records import (
    default_probes_folder,
    log_tail,
    make_folder,
    remove_folder,
    remove_leftovers,
    write_json,
)
from workers.rehearsal import RECORD, SNAPSHOT
from workers.scripts.host import PR_SET_CHILD_SUBREAPER, BoundedLog, Copier
from workers.standin import run as standin
from workers.stop import StopRequest, open_fd, run_command

LOG = logging.getLogger(__name__)
# Between two looks at a rank.
POLL_S = 0.1
# Seconds that a rank has to start, and to write what it has seen, beside those it may run.
BESIDE_S = 60.0
# Of a machine without bounds, in MiB: where no GPU is named, nothing runs out.
UNBOUNDED_MIB = 1 << 24
# Characters of what a script wrote that are told when it fails.
TAIL = 2000


def rehearse(order: dict[str, Any], stop: StopRequest, root: Path = Path("/")) -> dict[str, Any]:
    """Runs the ranks that are asked for; their records.

    Args:
        order: what is asked for.
        stop: ends it.
        root: where ``dev`` is found.

    Raises:
        ProbeError: there is a GPU, the stand-in cannot be built, or a rank cannot be started.
    """
    if not order["even_here"] and shows_gpu(root=root):
        raise ProbeError(
            "this machine has a GPU: a rehearsal needs none, and hides it (--even-here does it)"
        )
    if why := why_no_standin():
        raise ProbeError(f"a rehearsal is not possible here: {why}")
    libraries = standin.build()
    parent = default_probes_folder()
    remove_leftovers(parent)
    ranks = [_rank(order | {"rank": rank, "libraries": str(libraries)}, parent, stop)
             for rank in order["ranks"]]  # fmt: skip
    return {"ranks": ranks}


def _rank(order: dict[str, Any], parent: Path, stop: StopRequest) -> dict[str, Any]:
    folder = make_folder(parent, "rehearsal")
    try:
        inner, log = folder / "rank", folder / "log.txt"
        (folder / "tmp").mkdir()
        inner.mkdir()
        write_json(inner / "order.json", order | {"folder": str(folder)})
        code = _run(inner / "order.json", order, folder, log, stop)
        said = log_tail(log)[-TAIL:]
        try:
            record: dict[str, Any] = json.loads((inner / RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            words = " ".join(said.split())[-600:]
            how = {
                -signal.SIGALRM: "did not end in time",
                -signal.SIGKILL: "was killed, as the kernel does for want of memory",
            }.get(code, f"ended with exit code {code}")
            raise ProbeError(f"the script {how}: ...{words}") from None
        if order["snapshot"] and (inner / SNAPSHOT).exists():
            into = Path(order["snapshot"])
            into.mkdir(parents=True, exist_ok=True)
            place = into / f"rank-{record['rank']:05d}.pickle"
            shutil.copyfile(inner / SNAPSHOT, place)
            record["snapshot"] = str(place)
        return record | {"said": said if record["outcome"] == "failed" else ""}
    finally:
        remove_folder(folder)


def _run(path: Path, order: dict[str, Any], folder: Path, log: Path, stop: StopRequest) -> int:
    """Runs a rank to its end, of which nothing is left then; its exit code."""
    argv = [sys.executable, "-P", "-m", "workers.rehearsal.inside", str(path)]
    until = time.monotonic() + order["seconds"] + BESIDE_S
    with log.open("wb") as file:
        copier = Copier(BoundedLog(file.fileno()))
        rank = subprocess.Popen(
            argv,
            cwd=order["where"],
            env=_environment(order, folder),
            stdin=subprocess.DEVNULL,
            stdout=copier.pipe,
            stderr=copier.pipe,
        )
        try:
            end_first_for_memory(rank.pid)
            while (code := rank.poll()) is None:
                if why := stop.wait(POLL_S):
                    raise ProbeError(f"the rehearsal was stopped: {why}")
                if time.monotonic() > until:
                    return -signal.SIGALRM
            return code
        finally:  # what it started comes to this process when it ends, which is a subreaper
            while left := psutil.Process().children(recursive=True):
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(left)
            copier.close()


def _environment(order: dict[str, Any], folder: Path) -> dict[str, str]:
    """The user's environment, on GPUs of the stand-in's, with a temporary folder of its own."""
    options: dict[str, object] = {
        "DEVICES": order["gpus_per_node"] or 1,
        "NAME": order["gpu_name"],
        "CAPABILITY": order["capability"],
        "MIB": order["memory_mib"] or UNBOUNDED_MIB,
    }
    if not order["network"]:
        options["NETWORK"] = "refused"
    taken = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
    base = {n: v for n, v in without_secrets(os.environ).items()
            if n not in taken and not n.startswith(("STANDIN_", "TUNER_"))}  # fmt: skip
    base |= order.get("environment", {})
    found = standin.environment(options, base)
    own = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder / "tmp")}
    # what the script imports is its own affair: no sitecustomize of the stand-in's hides another
    own["PYTHONPATH"] = base.get("PYTHONPATH", "")
    return base | found | own


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.rehearsal", description=__doc__)
    parser.add_argument("--order", type=Path, required=True, help="what is rehearsed, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="gets the records, as JSON")
    parser.add_argument("--watch-fd", type=open_fd, help="stop when this pipe's other end closes")
    command = parser.parse_args()

    def work(stop: StopRequest) -> int:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        order = json.loads(command.order.read_text(encoding="utf-8"))
        try:
            write_json(command.out, rehearse(order, stop))
        except TunerError as error:
            write_json(command.out, {"error": str(error)})
        return 0

    return run_command(work, LOG, command.watch_fd)


if __name__ == "__main__":
    sys.exit(main())
