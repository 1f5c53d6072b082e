"""The tables of ``benchmarks/results/search.md``: of the result file, so they agree."""

from collections.abc import Callable

import markdown
from common import ROOT
from markdown import Row, Sections
from search_table import PROBES, percents

PAGE = ROOT / "benchmarks" / "results" / "search.md"


def searches(result: Row) -> list[str]:
    """Regrets of all searches, a table for each file; the rest is in the result."""
    figures = {**{f"mean@{k}": f"mean, {k}" for k in PROBES}, "median@3": "median, 3",
               "largest@3": "largest, 3", "largest@8": "largest, 8"}  # fmt: skip
    found = []
    for name in dict.fromkeys(row["table"] for row in result["rows"]):
        own = percents([row for row in result["rows"] if row["table"] == name])
        cells = [[row["search"], row["knows"], *(row[key] for key in figures)] for row in own]
        found += [
            f"**{name}**",
            "",
            *markdown.table(("search", "knows", *figures.values()), cells),
            "",
        ]
    for name, why in result["not_run"].items():
        found += [f"Not run: {name}, for {why}.", ""]
    return found[:-1]


def parts(result: Row) -> list[str]:
    """Mean regrets on random parts, with their standard errors."""
    head = ("search", "knows", *(f"mean, {k}" for k in PROBES))
    cells = [
        [row["search"], row["knows"],
         *(f"{100 * row[f'mean@{k}']:.1f}% ({100 * row[f'error@{k}']:.1f})" for k in PROBES)]
        for row in result["stability"]
    ]  # fmt: skip
    return markdown.table(head, cells)


def seconds_of(name: str) -> Callable[[Row], list[str]]:
    """A table of seconds as the result has it, with its own head."""

    def lines(result: Row) -> list[str]:
        return markdown.table([*result[name][0]], [list(row.values()) for row in result[name]])

    return lines


def transferred(result: Row) -> list[str]:
    """How far transferred step times are off."""
    rows = result["transferred"]
    names = [name.removesuffix(", factor") for name in rows[0] if name.endswith(", factor")]
    cells = [
        [
            row["runs"],
            row["constants"],
            *(f"{row[f'{n}, factor']:.2f}, {row[f'{n}, inside']:.0%} inside" for n in names),
        ]
        for row in rows
    ]
    return markdown.table(("runs", "constants", *names), cells)


SECTIONS: Sections = {
    "goals": markdown.goals,
    "searches": searches,
    "parts": parts,
    "asks": seconds_of("asks"),
    "plans": seconds_of("plans"),
    "transferred": transferred,
}
