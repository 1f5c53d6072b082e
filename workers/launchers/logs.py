"""The end of a rank's log, fit to be stored and shown."""

import re
from pathlib import Path

TAIL_BYTES = 4000
"""About 40 lines: a traceback and what came before it."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def log_tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The last ``most`` bytes of a log as text; empty when there is none.

    Bytes that are not UTF-8 are replaced; escape sequences and control characters are removed.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            raw = file.read(most)
    except FileNotFoundError:
        return ""
    text = raw.decode("utf-8", errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar's states, too
    return _CONTROL.sub("", _ANSI.sub("", lines))
