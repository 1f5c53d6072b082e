"""The results in ``docs/prediction.md``: written by the benchmark, so that page and file agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from common import ROOT

PAGE = ROOT / "docs" / "prediction.md"


def write(result: Mapping[str, Any]) -> None:
    """Put the results' tables into the page, each between its two markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("goals", goals(result)), ("rivals", rivals(result["rivals"]))):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(text, encoding="utf-8")


def goals(result: Mapping[str, Any]) -> list[str]:
    """Every figure that is held to something."""
    versions = result["versions"]
    met = sum(goal["met"] for goal in result["goals"])
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    return [
        f"{result['date']}, {result['device']}, {packages}: {met} of {len(result['goals'])} met.",
        "",
        "| figure | goal | value | |",
        "|---|---|---|---|",
        *(f"| {g['name']} | {g['goal']} | {g['value']:.3g} | {_met(g)} |" for g in result["goals"]),
    ]


def _met(goal: Mapping[str, Any]) -> str:
    return "met" if goal["met"] else "**missed**"


def rivals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Median errors and verdicts, ours and other tools'."""
    return [
        "| on | by | rows | median error | largest error | verdicts |",
        "|---|---|---|---|---|---|",
        *map(_rival, rows),
    ]


def _rival(row: Mapping[str, Any]) -> str:
    errors = f"{_percent(row['median_error'])} | {_percent(row['largest_error'])}"
    return f"| {row['on']} | {row['by']} | {row['n']} | {errors} | {_verdicts(row)} |"


def _verdicts(row: Mapping[str, Any]) -> str:
    accuracy = row["balanced_accuracy"]
    if accuracy is None:
        return ""
    return f"{row['verdicts_right']} (balanced accuracy {accuracy:.2f})"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3g}%"
