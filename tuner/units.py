"""Numbers, durations and sizes as people write them, read and shown."""

import re
from datetime import datetime

from tuner.errors import UsageError

SECONDS = {"s": 1, "m": 60, "h": 3600}
BYTES = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
LONGEST_S = 366 * 86_400
LARGEST_BYTES = 2**50
LEAST_WITHOUT_UNIT = 2**20
"""Bytes; nobody limits memory to less, but many forget the unit."""

_DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"


def read_whole(field: str, text: str) -> int:
    """A positive whole number.

    Raises:
        UsageError: it is none, or has more than 9 digits.
    """
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or int(text) < 1:
        raise UsageError(field, text, "must be a positive whole number")
    return int(text)


def read_share(field: str, text: str) -> float:
    """A number from 0 to below 1.

    Raises:
        UsageError: it is none; a percentage must be written as 0.05.
    """
    if not re.fullmatch(_DECIMAL, text.strip()) or float(text) >= 1:
        raise UsageError(field, text, "must be a number from 0 to below 1, such as 0.05")
    return float(text)


def read_seconds(field: str, text: str) -> float:
    """A positive number of seconds.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(_DECIMAL, text.strip()) or not float(text) > 0:
        raise UsageError(field, text, "must be a positive number of seconds")
    return float(text)


def read_duration(field: str, text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1.5h`` or ``1h30m``.

    Raises:
        UsageError: not of that form, not positive, or more than a year.
    """
    wanted = text.strip().lower()
    if not re.fullmatch(rf"{_DECIMAL}|(?:{_DECIMAL}[smh]){{1,3}}", wanted):
        raise UsageError(field, text, "must be a duration such as 90s, 10m or 1.5h")
    parts = re.findall(rf"({_DECIMAL})([smh]?)", wanted)
    seconds = sum(float(number) * SECONDS[unit or "s"] for number, unit in parts)
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(field, text, "must be longer than 0 and at most a year")
    return float(seconds)


def read_size(field: str, text: str) -> int:
    """Bytes of ``4GiB``, ``500MiB``, ``80GB`` (decimal) or ``1073741824``.

    Raises:
        UsageError: not of that form, below one byte, or above 1024 TiB; or a small number
            without a unit, which was meant to have one.
    """
    found = re.fullmatch(rf"({_DECIMAL})\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in BYTES:
        raise UsageError(field, text, "must be a size such as 4GiB, 500MiB or 80GB")
    size = int(float(found[1]) * BYTES[found[2]])
    if not found[2] and 1 <= size < LEAST_WITHOUT_UNIT:
        raise UsageError(field, text, f"must have a unit, as {found[1]}GiB or {found[1]}B has")
    if not 1 <= size <= LARGEST_BYTES:
        raise UsageError(field, text, "must be from 1 byte to 1024TiB")
    return size


def duration_text(seconds: float) -> str:
    """``0.8 s``, ``12 s``, ``1:05 min`` or ``1:02:05 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def time_text(seconds: float | None) -> str:
    """Seconds with three digits or more."""
    if seconds is None:
        return "-"
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:#.3g}"


def moment_text(iso: str) -> str:
    """``2026-11-21 14:05`` of a moment in UTC."""
    return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M}" if iso else "-"


def count_text(count: int, noun: str) -> str:
    """``1 probe`` or ``2 probes``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
