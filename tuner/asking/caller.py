"""Who asks: is told how it goes, and may stop it."""

from typing import Protocol

from tuner.asking.progress import PlainLines, Progress
from tuner.asking.values import Say
from tuner.asking.worker import NoSignals, Signals
from tuner.study import Study


class Caller(Protocol):
    """Somebody who waits for an answer."""

    def note(self, text: str) -> None:
        """Show a line, outside of any progress."""

    def progress_of(self, study: Study) -> Progress:
        """What shows a study while it is answered."""

    def signals(self) -> Signals:
        """What notes that the caller is asked to end."""


class PythonCaller:
    """A Python program. Its signals stay its own: Ctrl-C is a ``KeyboardInterrupt`` there, and in
    threads and notebooks nothing may be changed about them.
    """

    def __init__(self, say: Say) -> None:
        """``say`` is given each line."""
        self._say = say

    def note(self, text: str) -> None:
        """A line for ``say``."""
        self._say(text)

    def progress_of(self, study: Study) -> Progress:
        """Lines for ``say``."""
        return PlainLines(study, self._say)

    def signals(self) -> Signals:
        """None that are noted."""
        return NoSignals()
