"""What is shown on stderr while cases wait for dry runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.status import Status


class QuietWatch:
    """Shows notes only."""

    def waiting(self, text: str) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """A line of its own."""
        typer.echo(f"tuner: {text}", err=True)


class TerminalWatch(QuietWatch):
    """Shows what is waited for in the terminal's last line, and takes it away afterwards."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def waiting(self, text: str) -> None:
        """Show ``text`` until the next call; nothing for an empty one."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if text:
            self._status = self._console.status(text)
            self._status.start()


@contextmanager
def watch_of(*, as_json: bool) -> Iterator[QuietWatch]:
    """What fits stderr: progress for people at a terminal, notes for all."""
    console = Console(stderr=True)
    watch = TerminalWatch(console) if console.is_terminal and not as_json else QuietWatch()
    try:
        yield watch
    finally:
        watch.waiting("")
