"""The command line: parse, call, render. Each command is a module of its own."""

import errno
import gc
import os
import sys
from collections.abc import Sequence

# Exit code of Ctrl-C where nothing is under way that must be ended first.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``tuner`` with ``arguments``, by default the process's own; the exit code.

    0 answered, 1 failed, 2 usage, 3 nothing fits, 4 what fits trains
    something else; 128 and the signal's number when stopped.
    Errors are one line on stderr; with ``--json`` stdout also gets one object, ``{"error": ...}``.
    With ``TUNER_DEBUG=1`` the traceback comes first.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Imports make many objects that stay, 130,000 of them for the list of studies: looking through
    # them takes a seventh of a short command.
    gc.set_threshold(250_000)
    try:
        from tuner.cli.app import run
        from tuner.cli.errors import SHOWN, report

        try:
            return run(given or ["--help"])
        except SHOWN as error:
            if os.environ.get("TUNER_DEBUG") == "1":
                import traceback

                traceback.print_exception(error)
            return report(error, as_json="--json" in given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The disk, or what stdout leads to, is full: what is left to be flushed goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write("tuner: error: no space left on the device that this writes to\n")
        return 1
