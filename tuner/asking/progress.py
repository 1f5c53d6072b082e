"""A study while it is being answered, as lines of text."""

from dataclasses import replace
from typing import Protocol, Self

from tuner.answering.words import rank_word
from tuner.asking.values import Say
from tuner.planner.words import describe
from tuner.results.rows import rows_of
from tuner.results.words import row_text
from tuner.study import Probe, ProbeState, Study


class Progress(Protocol):
    """Shows a study while it is being answered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def show(self, study: Study) -> None:
        """Show the study as it is now; called several times a second."""

    def note(self, text: str) -> None:
        """Show a line."""


class PlainLines:
    """One line for each probe that is finished."""

    def __init__(self, study: Study, say: Say) -> None:
        self._known = {probe.id for probe in study.probes if probe.state is ProbeState.DONE}
        self._before = len(self._known)
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is to be put back."""

    def show(self, study: Study) -> None:
        """A line for every probe that was not finished at the last call."""
        for probe in study.probes:
            if probe.state is ProbeState.DONE and probe.id not in self._known:
                self._known.add(probe.id)
                number = len(self._known) - self._before
                self.note(f"probe {of_most(number, study)}: {_finding(study, probe)}")

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(text)


def probes_spent(study: Study) -> int:
    """Finished probes of this asking."""
    return sum(probe.state is ProbeState.DONE for probe in study.in_order[study.probes_before :])


def of_most(number: int, study: Study) -> str:
    """``3/10``; a probe that another worker was running when it was asked may come on top."""
    return f"{number}/{max(number, study.terms.max_probes)}"


def _finding(study: Study, probe: Probe) -> str:
    """What one probe found, and with which settings; without its repetitions."""
    row = rows_of(replace(study, probes=(probe,)))[0]
    return f"{row_text(row, rank_word(study.question))} [{describe(row.settings)}]"
