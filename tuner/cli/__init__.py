"""The command line: parse, call, render. Each command is a module of its own."""

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code of Ctrl-C where nothing is under way that must be ended first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``tuner`` with ``arguments``, by default the process's own; the exit code.

    0 answered, 1 failed, 2 usage, 3 nothing fits; 128 and the signal's number when stopped.
    Errors are one line on stderr; with ``--json`` stdout also gets one object, ``{"error": ...}``.
    With ``TUNER_DEBUG=1`` the traceback comes first.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given or ["--help"])
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    from tuner.cli.app import run
    from tuner.cli.errors import SHOWN, report

    try:
        return run(arguments)
    except SHOWN as error:
        if os.environ.get("TUNER_DEBUG") == "1":
            import traceback

            traceback.print_exception(error)
        return report(error, as_json="--json" in arguments)
