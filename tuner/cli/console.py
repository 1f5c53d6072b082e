"""Output to the terminal: facts, plain tables, paragraphs, and what is waited for."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tuner.client.cases.dry_runs import Watch

# Columns of output that does not go to a terminal, unless $COLUMNS says otherwise.
FILE_WIDTH = 160
# Columns of paragraphs: longer lines are hard to read.
TEXT_WIDTH = 100


def stdout_console() -> Console:
    """A console for answers; it colors nothing by itself."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


def print_facts(console: Console, facts: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Names, each with its value beside it, as wide as text, without blanks at the ends of lines,
    which a terminal that is made narrower would wrap."""
    known = [(f"{'':{indent}}{name}", value) for name, value in facts]
    head = max((len(name) for name, _ in known), default=0) + 2
    for name, value in known:
        parts = Text(value).wrap(console, min(console.width, TEXT_WIDTH) - head)
        for index, part in enumerate(parts):
            title = "" if index else name
            line = Text.assemble(f"{title:{head}}", (part.plain.rstrip(), "bold"))
            console.print(line, soft_wrap=True)


def wrappable(text: str) -> str:
    """The text with spaces in its configurations, which have none, and could not be wrapped."""
    return re.sub(r",(?=\w+=)", ", ", text)


def paragraphs(
    console: Console, lines: Sequence[str], title: str = "", *, further: int = 4
) -> None:
    """Paragraphs, if there are any: first lines indented by two, further ones by ``further``."""
    if lines and title:
        console.print()
        console.print(Text(title, style="bold"))
    for line in lines:
        wrapped = Text(wrappable(line)).wrap(console, min(console.width, TEXT_WIDTH) - further)
        shown = f"\n{' ' * further}".join(part.plain.rstrip() for part in wrapped)
        console.print(Text(f"  {shown}"), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column before it is known whether there is room for it."""

    title: str
    """Its head, of one or two lines."""
    cells: Sequence[str]
    is_number: bool = False
    """True where it is flush right."""

    @property
    def width(self) -> int:
        return max(map(len, (*self.title.split("\n"), *self.cells)))


def natural_width(columns: Sequence[Column]) -> int:
    """Characters of a line of a table, with two spaces between columns."""
    return sum(column.width for column in columns) + 2 * (len(columns) - 1)


def table_of(columns: Sequence[Column], width: int, styles: Sequence[str] = ()) -> Table:
    """A table without borders, with two spaces between columns, or one where ``width`` is small.

    Columns are of equal length; ``styles`` are of each row.
    """
    # The box itself puts one space between columns.
    apart = 1 if natural_width(columns) <= width else 0
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, apart, 0, 0),
        header_style="bold",
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, vertical="bottom")
    for row in range(len(columns[0].cells)):
        style = styles[row] if styles else ""
        table.add_row(*(Text(column.cells[row]) for column in columns), style=style)
    return table


def print_rows(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: str = "", indent: int = 0
) -> None:
    """Print a table of at least one row on stdout; ``numbers`` are titles of columns flush right.

    >>> print_rows(("key", "uses"), [("a", "12")], numbers="uses")
    """
    console = stdout_console()
    cells = zip(*rows, strict=True)
    columns = [
        Column(title, column, is_number=title in numbers.split(","))
        for title, column in zip(titles, cells, strict=True)
    ]
    table = table_of(columns, console.width - indent)
    console.print(Padding(table, (0, 0, 0, indent), expand=False))


@contextmanager
def watch_of(*, as_json: bool) -> Iterator["Watch"]:
    """Notes on stderr, and for people at a terminal what is waited for, in its last line, which is
    taken away afterwards."""
    from tuner.client.cases.dry_runs import Watch  # which tables need not
    from tuner.client.values import silent

    console = Console(stderr=True)
    status = console.status("")

    def waiting(text: str) -> None:
        status.stop()
        if text:
            status.update(text)
            status.start()

    def note(text: str) -> None:
        typer.echo(f"tuner: {text}", err=True)

    try:
        yield Watch(note, waiting if console.is_terminal and not as_json else silent)
    finally:
        status.stop()
