"""Lines of cases: split from a stream as they come in, and read as strict JSON."""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Protocol

from tuner.errors import UsageError

CHUNK_BYTES = 4 * 2**20
"""Read at once of a file. Cases of one chunk are looked at together: some thousands of them."""
LARGEST_LINE_BYTES = 4 * 2**20
"""A case with a whole ``config.json`` has some kB; longer lines are refused unread."""
DEEPEST = 12
"""Levels of lists and objects in a case: three around a model's configuration, which has eight."""


class Stream(Protocol):
    """A binary stream, such as ``sys.stdin.buffer`` or an open file."""

    def read1(self, size: int, /) -> bytes:
        """What is there, but no more than ``size`` bytes; nothing at the end."""


def read_batches(stream: Stream) -> Iterator[list[bytes]]:
    """Whole lines as they come in, without waiting for more than a first one.

    Whoever writes one case and waits for its answer gets it; a file is read in large batches. Of a
    line longer than :data:`LARGEST_LINE_BYTES` only the beginning is kept, one byte too long.

    Raises:
        UsageError: the stream cannot be read any further.
    """
    rest = b""
    while chunk := _read(stream):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: LARGEST_LINE_BYTES + 1]
        if lines:
            yield lines
    if rest:
        yield [rest]


def _read(stream: Stream) -> bytes:
    try:
        return stream.read1(CHUNK_BYTES)
    except OSError as error:
        allowed = f"cannot be read any further: {error.strerror}"
        raise UsageError("cases", "the file", allowed) from error


def parse_line(line: bytes, number: int) -> dict[str, Any]:
    """The JSON object of a line.

    Args:
        line: without its end.
        number: of the line, from 1, for errors that have no better name for it.

    Raises:
        UsageError: it is not UTF-8, not JSON (NaN and Infinity are not), no object, too long or
            nested too deeply, or holds a name twice.
    """
    try:
        return _parsed(line)
    except _UnreadableError as error:
        raise UsageError("case", f"line {number}", str(error)) from error


class _UnreadableError(ValueError):
    """Why a line is no case at all."""


class _DoubledError(ValueError):
    """An object holds a name twice."""


def _parsed(line: bytes) -> dict[str, Any]:
    if len(line) > LARGEST_LINE_BYTES:
        raise _UnreadableError(f"must be {LARGEST_LINE_BYTES} bytes at most")
    try:
        text = line.decode("utf-8-sig")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _UnreadableError("must be JSON in UTF-8") from error
    except RecursionError as error:
        raise _UnreadableError(_TOO_DEEP) from error
    except _DoubledError as error:
        raise UsageError(_doubled_path(text), "two values", "must be given once") from error
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise _UnreadableError(f"must be JSON: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise _UnreadableError("must be a JSON object")
    # Few lines have that many brackets, so few are walked through.
    if text.count("{") + text.count("[") > DEEPEST and _depth(value) > DEEPEST:
        raise _UnreadableError(_TOO_DEEP)
    return value


_TOO_DEEP = f"may have {DEEPEST} levels of lists and objects at most"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubledError
    return found


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)


class _Doubled(dict[str, Any]):
    """An object that holds a name twice."""

    name = ""


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = _Doubled(pairs)
    seen: set[str] = set()
    for name, _ in pairs:
        found.name = name if name in seen else found.name
        seen.add(name)
    return found if found.name else dict(pairs)


def _doubled_path(text: str) -> str:
    """Where a name is given twice, such as ``workload.model.hidden_size``."""
    return _twice(json.JSONDecoder(object_pairs_hook=_marked).decode(text), "") or "case"


def _twice(value: object, path: str) -> str:
    if isinstance(value, _Doubled):
        return f"{path}{value.name}"
    if isinstance(value, Mapping):
        return next(filter(None, (_twice(v, f"{path}{k}.") for k, v in value.items())), "")
    if isinstance(value, list):
        return next(filter(None, (_twice(v, path) for v in value)), "")
    return ""


def _depth(value: object) -> int:
    """Levels of lists and objects."""
    level, deepest = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        deepest += 1
        level = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
    return deepest


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)
