"""Writes answers and lists of facts to the terminal."""

import os
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def facts_grid(facts: Iterable[tuple[str, str]]) -> Table:
    """Names with their values beside them."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(style="bold")
    for name, value in facts:
        grid.add_row(name, Text(value))
    return grid
