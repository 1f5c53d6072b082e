"""Cases from a stream, answered in their order, each as soon as it can be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.cases.answers import Finding, answer_of, refusal, unknown
from tuner.cases.coverage import NotCoveredError
from tuner.cases.lines import Stream, parse_line, read_batches
from tuner.cases.reading import Case, read_case
from tuner.errors import UsageError


class Findings(Protocol):
    """What dry runs say; :class:`tuner.cases.dry_runs.DryRuns` is one."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """Look at cases that are asked for next, in this order."""

    def of(self, case: Case) -> Finding:
        """What is known of one of them; waits for a dry run that is being made for it."""


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
                lines.append(_read(text, number))
        findings.prepare([line.found for line in lines if isinstance(line.found, Case)])
        for line in lines:
            yield {**line.echo, **_added(line, findings)}


def _read(text: bytes, number: int) -> _Line:
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
            return unknown(str(reason))
        case error:
            return refusal(error)
