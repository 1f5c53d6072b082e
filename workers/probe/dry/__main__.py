"""Dry runs of many requests by one process.

    python -P -m workers.probe.dry [--limit-s 60] [--jobs 2] <requests >answers

A request is a line of JSON: ``{"id", "spec", "micro_batch_sizes", "accumulation_counts"}``,
``spec`` with the fields of ``workers/probe/spec.py``. Each is answered by a line as soon as it
is done, in any order: its ``id``, and either ``trace`` (``workers/probe/dry/trace.py``) or
``error``. The exit code is 0 when all were answered, errors among them.
"""

import argparse
import os
import sys


def main() -> int:
    """Answer all requests on standard input."""
    parser = argparse.ArgumentParser(prog="python -m workers.probe.dry", description=__doc__)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    # whatever libraries print goes to stderr: stdout is for answers alone
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    from workers.probe.dry.preload import preload  # torch takes seconds: parse first
    from workers.probe.dry.server import Server

    preload()
    Server(sys.stdin.fileno(), write, limit_s=options.limit_s, jobs=options.jobs).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
