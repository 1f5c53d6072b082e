"""The terminal as a caller: progress and notes go to stderr, signals stop what is under way."""

import typer

from tuner.asking.progress import Progress
from tuner.asking.worker import Signals
from tuner.cli.progress import progress_of
from tuner.study import Study


class Terminal:
    """Somebody at a terminal, or a program that reads stderr."""

    def note(self, text: str) -> None:
        """A line on stderr."""
        typer.echo(text, err=True)

    def progress_of(self, study: Study) -> Progress:
        """A live table, or lines."""
        return progress_of(study)

    def signals(self) -> Signals:
        """SIGINT, SIGTERM and SIGHUP are noted."""
        return Signals()
