"""Numbers, durations and sizes as people write them, read and shown."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from math import isfinite
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tuner.errors import UsageError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
BYTES = {
    "": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
TOKENS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
LONGEST_S = 366 * 86_400
LARGEST_BYTES = 2**50
# Bytes; nobody limits memory to less, but many forget the unit.
LEAST_WITHOUT_UNIT = 2**20

_DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"


def read_whole(field: str, text: str) -> int:
    """A positive whole number."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or int(text) < 1:
        raise UsageError(field, text, "must be a positive whole number")
    return int(text)


def read_length(field: str, text: str) -> int:
    """A positive whole number, also in units of 1,024: ``8k`` is 8,192."""
    found = re.fullmatch(r"([0-9]{1,6})k|([0-9]{1,9})", text.strip().lower())
    if found is None:
        raise UsageError(field, text, "must be a positive whole number, such as 8192 or 8k")
    return 1024 * read_whole(field, found[1]) if found[1] else read_whole(field, found[2])


def read_tokens(field: str, text: str) -> float:
    """A number of tokens: ``1T``, ``300B``, ``1.5e9`` or ``20000000``."""
    found = re.fullmatch(rf"({_DECIMAL}(?:e[0-9]{{1,2}})?)([kmbt]?)", text.strip().lower())
    tokens = float(found[1]) * TOKENS[found[2]] if found else 0.0
    if not 0 < tokens <= 1e18:
        raise UsageError(field, text, "must be a number of tokens, such as 300B or 1T")
    return tokens


def read_share(field: str, text: str) -> float:
    """A number from 0 to below 1."""
    if not re.fullmatch(_DECIMAL, text.strip()) or float(text) >= 1:
        raise UsageError(field, text, "must be a number from 0 to below 1, such as 0.05")
    return float(text)


def read_number(field: str, text: str) -> float:
    """A number of 0 or more."""
    if not re.fullmatch(_DECIMAL, text.strip()):
        raise UsageError(field, text, "must be a number, such as 32")
    return float(text)


def read_seconds(field: str, text: str) -> float:
    """A positive number of seconds."""
    if not re.fullmatch(_DECIMAL, text.strip()) or not float(text) > 0:
        raise UsageError(field, text, "must be a positive number of seconds")
    return float(text)


def read_duration(field: str, text: str) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1.5h``, ``1h30m`` or ``90d``."""
    wanted = text.strip().lower()
    if not re.fullmatch(rf"{_DECIMAL}|(?:{_DECIMAL}[smhd]){{1,4}}", wanted):
        raise UsageError(field, text, "must be a duration such as 90s, 10m or 1.5h")
    parts = re.findall(rf"({_DECIMAL})([smhd]?)", wanted)
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


def size_unit(largest_bytes: float) -> tuple[str, int]:
    """The unit in which sizes up to ``largest_bytes`` read well, and its bytes."""
    units = (("GiB", 2**30), ("MiB", 2**20))
    return next((unit for unit in units if largest_bytes >= unit[1]), ("KiB", 2**10))


def size_text(size_bytes: float) -> str:
    """``1.25 GiB``, ``612 MiB`` or ``80.0 KiB``."""
    unit, divisor = size_unit(size_bytes)
    return f"{size_number(size_bytes, divisor)} {unit}"


def size_number(size_bytes: float, divisor: int) -> str:
    """A size in units of ``divisor`` bytes; three digits below 1000."""
    size = size_bytes / divisor
    return f"{size:.0f}" if size >= 100 else f"{size:.1f}" if size >= 10 else f"{size:.2f}"


def three_digits(value: float) -> str:
    """A number as it reads well in a list: ``0.0152``, ``8.03``, ``1027``."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class DoubledNameError(ValueError):
    """An object holds a name twice.

    Args:
        path: the name with those around it, such as ``workload.model.hidden_size``.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: is there twice")
        self.path = path


def show(value: object) -> str:
    """A knob's value as a user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_all(values: Collection[Any], most: int = 12) -> str:
    """Values as a user writes them, at most ``most`` of them."""
    shown = [show(value) for value in values]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """The JSON text of plain values; a number that is not finite is written ``null``."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, indent=indent, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False, separators=separators)


def read_json(text: str) -> Any:
    """The value of a JSON text, read strictly.

    Raises:
        DoubledNameError: an object holds a name twice.
        ValueError: it is no JSON (NaN and infinities are none), or a number is too large.
        RecursionError: it is nested too deeply.
    """
    doubled: list[tuple[dict[str, Any], str]] = []

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            doubled.append((found, Counter(name for name, _ in pairs).most_common(1)[0][0]))
        return found

    decoder = json.JSONDecoder(
        object_pairs_hook=read_object,
        parse_float=_finite_number,
        parse_int=_short_number,
        parse_constant=_no_constant,
    )
    value = decoder.decode(text)
    if doubled:
        # Of several the one that ends last: no object around it is doubled, so it was not lost.
        holder, name = doubled[-1]
        raise DoubledNameError(f"{_path_to(value, holder)}{name}")
    return value


def _path_to(value: object, holder: object, path: str = "") -> str | None:
    """The names that lead to an object, each with a dot; ``None`` where it is not inside."""
    if value is holder:
        return path
    if isinstance(value, list):
        inside = [(item, path) for item in value]
    elif isinstance(value, dict):
        inside = [(item, f"{path}{name}.") for name, item in value.items()]
    else:
        return None
    paths = (_path_to(item, holder, onward) for item, onward in inside)
    return next((found for found in paths if found is not None), None)


def _finite_number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _short_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # Python's own limit of digits
        raise ValueError(f"{text[:40]} is too large a number") from error


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class Same(Generic[T]):
    """Equal where the object is the very same one.

    Studies and what is learned of them hold mappings, and cannot be hashed; to compare two of them
    would take as long as to make anew what is kept. They are never changed once they are made. A
    cache holds the object with its key, so that no other one can be at its address.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def kept(
    maxsize: int,
) -> Callable[[Callable[Concatenate[T, P], R]], Callable[Concatenate[T, P], R]]:
    """Keeps what a function returned for the very same first argument, and equal other ones."""

    def decorate(make: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
        call: Any = make

        @lru_cache(maxsize=maxsize)
        def made(first: Same[Any], *others: Any) -> Any:
            return call(first.value, *others)

        @wraps(make)
        def found(first: T, /, *others: P.args, **none: P.kwargs) -> R:
            result: R = made(Same(first), *others)
            return result

        return found

    return decorate
