"""Parts of a page that programs write: tables, and what is between two markers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Sections = Mapping[str, Callable[[Row], list[str]]]
"""What makes the lines between a page's markers, by their name."""


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with other lines between its two markers of a name.

    Raises:
        ValueError: a marker is missing, or there twice.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return before + begin + "\n".join(lines) + "\n" + end + after


def filled(text: str, sections: Sections, result: Row) -> str:
    """A page with each section between the markers of its name made anew of a result.

    Raises:
        ValueError: a marker is missing, or there twice.
    """
    for name, lines in sections.items():
        text = between(text, name, lines(result))
    return text


def fill(page: Path, sections: Sections, result: Row) -> None:
    """Write the sections of a result into a page, so that both agree."""
    page.write_text(filled(page.read_text(encoding="utf-8"), sections, result), encoding="utf-8")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def goals(result: Row) -> list[str]:
    """Every figure of a result that is held to something."""
    met = sum(goal["met"] for goal in result["goals"])
    versions = result["versions"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    where = f"{result['date']}, {result['device']}, {packages}"
    rows = [(g["name"], g["goal"], number(g["value"]), _met(g)) for g in result["goals"]]
    head = ("figure", "goal", "value", "")
    return [f"{where}: {met} of {len(rows)} met.", "", *table(head, rows)]


def _met(goal: Row) -> str:
    if goal["value"] is None:
        return "not measured"
    return "met" if goal["met"] else "**missed**"


def number(value: float | None) -> str:
    """Three digits; nothing where there is no figure."""
    return "" if value is None else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share in percent; nothing where there is no figure."""
    return "" if share is None else f"{100 * share:.3g}%"
