"""Lines of cases: split from a stream as they come in, and read as strict JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.client.cases.answers import Finding, answer_of, refusal, unknown
from tuner.client.cases.reading import Case, read_case
from tuner.client.values import NotCoveredError
from tuner.errors import UsageError
from tuner.text import DoubledNameError, read_json

# Read at once of a file. Cases of one chunk are looked at together: some thousands of them.
CHUNK_BYTES = 4 * 2**20
# A case with a whole ``config.json`` has some kB; longer lines are refused unread.
LARGEST_LINE_BYTES = 4 * 2**20
# Levels of lists and objects in a case: three around a model's configuration, which has eight.
DEEPEST = 12


class Stream(Protocol):
    """A binary stream, such as ``sys.stdin.buffer`` or an open file."""

    def read1(self, size: int, /) -> bytes:
        """Reads what is there, but no more than ``size`` bytes; nothing at the end."""


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


def _parsed(line: bytes) -> dict[str, Any]:
    if len(line) > LARGEST_LINE_BYTES:
        raise _UnreadableError(f"must be {LARGEST_LINE_BYTES} bytes at most")
    try:
        text = line.decode("utf-8-sig")
        value = read_json(text)
    except UnicodeDecodeError as error:
        raise _UnreadableError("must be JSON in UTF-8") from error
    except RecursionError as error:
        raise _UnreadableError(_TOO_DEEP) from error
    except DoubledNameError as error:
        raise UsageError(error.path or "case", "two values", "must be given once") from error
    except ValueError as error:  # not JSON, or a number that is too large
        raise _UnreadableError(f"must be JSON: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise _UnreadableError("must be a JSON object")
    # Few lines have that many brackets, so few are walked through.
    if text.count("{") + text.count("[") > DEEPEST and _depth(value) > DEEPEST:
        raise _UnreadableError(_TOO_DEEP)
    return value


_TOO_DEEP = f"may have {DEEPEST} levels of lists and objects at most"


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


class Findings(Protocol):
    """Gives the findings of dry runs; :class:`tuner.client.cases.dry_runs.DryRuns` is one."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """Look at cases that are asked for next, in this order."""

    def of(self, case: Case) -> Finding:
        """Returns the findings for one of them; waits for a dry run that is being made for it."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line, read."""

    echo: dict[str, Any]
    """The case as it was written; nothing of a line that is not JSON."""
    found: Case | NotCoveredError | UsageError
    """What it holds."""


def answer_cases(stream: Stream, findings: Findings) -> Iterator[dict[str, Any]]:
    """The answer to each line that is not blank: the case as it was written, and what is added.

    A line that is wrong is answered with ``error``, and nothing else is added.
    """
    number = 0
    for batch in read_batches(stream):
        lines = []
        for text in batch:
            number += 1
            if text.strip():
                lines.append(_stream_read(text, number))
        findings.prepare([line.found for line in lines if isinstance(line.found, Case)])
        for line in lines:
            yield {**line.echo, **_added(line, findings)}


def _stream_read(text: bytes, number: int) -> _Line:
    try:
        values = parse_line(text, number)
    except UsageError as error:
        return _Line({}, error)
    try:
        return _Line(values, read_case(values))
    except (NotCoveredError, UsageError) as error:
        return _Line(values, error)


def _added(line: _Line, findings: Findings) -> dict[str, Any]:
    match line.found:
        case Case() as case:
            return answer_of(case, findings.of(case))
        case NotCoveredError() as reason:
            return unknown(reason.allowed)
        case error:
            return refusal(error)
