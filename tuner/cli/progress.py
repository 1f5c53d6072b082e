"""Shows a study while probes run: a live table on a terminal, and plain lines otherwise."""

import sys
import time
from functools import partial
from textwrap import fill
from typing import Any, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.cli.tables import probes_table
from tuner.client.answered import of_most
from tuner.client.local import Caller
from tuner.client.values import silent
from tuner.client.worker_process import Signals
from tuner.core.measurement import RAN
from tuner.core.study import ProbeState, Study, StudyState
from tuner.core.words import probe_name, probe_word, rank_word
from tuner.results.points import differing, fastest_first, question_text, rows_of
from tuner.space import enumerate_space
from tuner.text import duration_text

# Between two frames when nothing happened: the clock moves on.
FRAME_S = 1.0
# Lines of the display that are not rows of the table.
BESIDE_ROWS = 9


def to_stderr(text: str) -> None:
    """A line on stderr, which a terminal gets whole words of."""
    if sys.stderr.isatty():
        width = Console(stderr=True).width
        text = fill(text, width, subsequent_indent="  ", break_long_words=False)
    typer.echo(text, err=True)


class LiveTable:
    """The probes as they come in, what is running now, and how much of the budget is spent."""

    def __init__(self, console: Console, study: Study) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._study = study
        self._note = ""
        self._began = time.monotonic()
        self._running: dict[int, float] = {}
        self._knobs = differing(enumerate_space(study.question).legal)
        self._drawn = 0.0
        self._told_at = self._began

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, study: Study) -> None:
        """Draw again when the study is another, or a second has passed."""
        now = time.monotonic()
        if study is self._study and now - self._drawn < FRAME_S:
            return
        if study.reason != self._study.reason:
            self._told_at = now
        self._study, self._drawn = study, now
        running = [p.id for p in study.probes if p.state is ProbeState.RUNNING]
        self._running = {id_: self._running.get(id_, now) for id_ in running}
        self._live.update(self._frame(now), refresh=True)

    def note(self, text: str) -> None:
        self._note = text
        self._live.update(self._frame(time.monotonic()), refresh=True)

    def _frame(self, now: float) -> Group:
        rows = rows_of(self._study.at(self._study.limits.fidelity))
        latest = rows[-max(3, self._console.height - BESIDE_ROWS) :]
        heading = f"{self._study.id}: {question_text(self._study.question)}"
        one_line: dict[str, Any] = {"overflow": "ellipsis", "no_wrap": True}
        parts: list[Table | Text] = [Text(heading, style="bold", **one_line)]
        if rows:
            # the fastest so far that fits; the answer may prefer one that is tied with it
            limit = self._study.limits.limit_bytes(self._study.question.cluster)
            ran = [row for row in rows if row.outcome in RAN and row.expected_bytes <= limit]
            timed = [one for one in fastest_first(ran) if one.step_time_s.value is not None]
            best = timed[0].settings if timed else None
            per = rank_word(self._study.question)
            table = probes_table(latest, self._knobs, width=self._console.width, per=per, best=best)
            parts.append(table)
        since = self._study.in_order[self._study.probes_before :]  # of this request
        spent = sum(probe.state is ProbeState.DONE for probe in since)
        most = self._study.limits.max_probes
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            ProgressBar(total=most, completed=spent, width=20),
            Text(f"{of_most(spent, self._study)} {probe_word(self._study.limits.fidelity)}s"),
            Text(duration_text(now - self._began)),
            Text(self._now(now), **one_line),
        )
        parts.append(grid)
        if self._note:
            parts.append(Text(self._note, style="yellow"))
        return Group(*parts)

    def _now(self, now: float) -> str:
        for probe in self._study.probes:
            if probe.id in self._running:
                return f"{probe_name(probe)} running for {now - self._running[probe.id]:.0f} s"
        if self._study.state is StudyState.RUNNING and self._study.reason:
            return f"{self._study.reason}, {now - self._told_at:.0f} s"
        if any(probe.state is ProbeState.QUEUED for probe in self._study.probes):
            return "waiting for this machine"
        if self._study.state is StudyState.QUEUED:
            return "starting a worker"
        return "choosing the next probe"


def terminal(*, quiet: bool = False) -> Caller:
    """Somebody at a terminal, or a program that reads stderr; stdout is for the answer. ``quiet``
    shows nothing there."""
    console = Console(stderr=True)
    live = partial(LiveTable, console) if console.is_terminal and not quiet else None
    return Caller(note=silent if quiet else to_stderr, signals=Signals, live=live)
