"""Plain tables, laid out for the terminal's width."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column before it is known whether there is room for it."""

    title: str
    """Its head, of one or two lines."""
    cells: Sequence[str]
    """Top to bottom."""
    is_number: bool = False
    """Whether it is flush right."""

    @property
    def width(self) -> int:
        """Characters that it needs."""
        return max(map(len, (*self.title.split("\n"), *self.cells)))


def natural_width(columns: Sequence[Column]) -> int:
    """Characters of a line of a table, with two spaces between columns."""
    return sum(column.width for column in columns) + 2 * (len(columns) - 1)


def table_of(columns: Sequence[Column], width: int, styles: Sequence[str] = ()) -> Table:
    """A table without borders, with two spaces between columns, or one where it is narrow.

    Args:
        columns: of equal length.
        width: columns of the terminal.
        styles: of each row.
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
