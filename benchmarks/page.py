"""Results as tables of a page: written by programs, so that page and file agree."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common import ROOT

PAGE = ROOT / "docs" / "prediction.md"


def write(result: Mapping[str, Any]) -> None:
    """Put the results' tables into the page, each between its two markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("goals", goals(result)), ("rivals", rivals(result["rivals"]))):
        text = between(text, name, lines)
    PAGE.write_text(text, encoding="utf-8")


def between(text: str, name: str, lines: Iterable[str]) -> str:
    """A page with other lines between its two markers of a name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    return before + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]


def goals(result: Mapping[str, Any]) -> list[str]:
    """Every figure that is held to something."""
    met = sum(goal["met"] for goal in result["goals"])
    where = f"{result['date']}, {result['device']}, {packages(result)}"
    rows = [(g["name"], g["goal"], number(g["value"]), _met(g)) for g in result["goals"]]
    head = ("figure", "goal", "value", "")
    return [f"{where}: {met} of {len(result['goals'])} met.", "", *table(head, rows)]


def packages(result: Mapping[str, Any]) -> str:
    """The releases that decide most."""
    versions = result["versions"]
    return ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown."""
    first, *rest = (f"| {' | '.join(map(str, row))} |" for row in (head, *rows))
    return [first, "|" + "---|" * len(head), *rest]


def number(value: float | None) -> str:
    """Three digits; nothing where there is no figure."""
    return "" if value is None else f"{value:.3g}"


def _met(goal: Mapping[str, Any]) -> str:
    if goal["value"] is None:
        return "not measured"
    return "met" if goal["met"] else "**missed**"


def rivals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Median errors and verdicts, ours and other tools'."""
    head = ("on", "by", "rows", "median error", "largest error", "verdicts")
    return table(head, map(_rival, rows))


def _rival(row: Mapping[str, Any]) -> tuple[object, ...]:
    errors = percent(row["median_error"]), percent(row["largest_error"])
    return (row["on"], row["by"], row["n"], *errors, _verdicts(row))


def _verdicts(row: Mapping[str, Any]) -> str:
    accuracy = row["balanced_accuracy"]
    if accuracy is None:
        return ""
    return f"{row['verdicts_right']} (balanced accuracy {accuracy:.2f})"


def percent(share: float | None) -> str:
    """A share in percent; nothing where there is no figure."""
    return "" if share is None else f"{100 * share:.3g}%"
