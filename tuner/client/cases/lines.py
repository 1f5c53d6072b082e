"""Lines of cases: split from a stream as they come in, and read as strict JSON."""

import json
from collections.abc import Iterator
from typing import Any, Protocol

from tuner.client.cases.answers import answer_of, unknown
from tuner.client.cases.dry_runs import DryRuns
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
    try:
        while chunk := stream.read1(CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[: LARGEST_LINE_BYTES + 1]
            if lines:
                yield lines
    except OSError as error:
        allowed = f"cannot be read any further: {error.strerror}"
        raise UsageError("cases", "the file", allowed) from error
    if rest:
        yield [rest]


def parse_line(line: bytes, number: int) -> dict[str, Any]:
    """The JSON object of a line without its end; ``number`` is for errors without a better name.

    Raises:
        UsageError: it is not UTF-8, not JSON (NaN and Infinity are not), no object, too long or
            nested too deeply, or holds a name twice.
    """
    too_deep = f"may have {DEEPEST} levels of lists and objects at most"
    why, value = "", None
    if len(line) > LARGEST_LINE_BYTES:
        why = f"must be {LARGEST_LINE_BYTES} bytes at most"
    else:
        try:
            text = line.decode("utf-8-sig")
            value = read_json(text)
            # Few lines have that many brackets, so few are walked through.
            if text.count("{") + text.count("[") > DEEPEST and _depth(value) > DEEPEST:
                why = too_deep
        except UnicodeDecodeError:
            why = "must be JSON in UTF-8"
        except RecursionError:
            why = too_deep
        except DoubledNameError as error:
            raise UsageError(error.path or "case", "two values", "must be given once") from error
        except json.JSONDecodeError as error:
            why = f"must be JSON: {error.msg} at character {error.pos + 1}"
        except ValueError as error:  # a number that is too large
            why = f"must be JSON: {error}"
    if not why and isinstance(value, dict):
        return value
    raise UsageError("case", f"line {number}", why or "must be a JSON object")


def _depth(value: object) -> int:
    """Levels of lists and objects."""
    level, deepest = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        deepest += 1
        level = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
    return deepest


def answer_cases(stream: Stream, dry_runs: DryRuns) -> Iterator[dict[str, Any]]:
    """The answer to each line that is not blank: the case as it was written, and what is added.

    A line that is wrong is answered with ``error``, and nothing else is added.
    """
    number = 0
    for batch in read_batches(stream):
        # By line, what is echoed (nothing of one that is not JSON), and what it holds.
        lines: list[tuple[dict[str, Any], Case | UsageError]] = []
        for text in batch:
            number += 1
            if text.strip():
                values: dict[str, Any] = {}
                try:
                    values = parse_line(text, number)
                    lines.append((values, read_case(values)))
                except UsageError as error:
                    lines.append((values, error))
        dry_runs.prepare([found for _, found in lines if isinstance(found, Case)])
        for echo, found in lines:
            if isinstance(found, Case):
                answer = answer_of(found, dry_runs.of(found))
            elif isinstance(found, NotCoveredError):
                answer = unknown(found.allowed)
            else:
                errors = [one.as_dict() for one in found.errors]
                said = " ".join(found.errors[0].detail.split())
                answer = {"error": {"field": found.field, "message": said, "errors": errors}}
            yield {**echo, **answer}
