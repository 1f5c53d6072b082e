"""What every benchmark shares: its goals, its table, its result file."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "transformers", "accelerate", "optuna", "sqlalchemy", "typer", "rich")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure that is held to something."""

    name: str
    """What was measured, with its unit."""
    goal: str
    """Such as ``<= 0.3``."""
    value: float
    """What was seen."""

    @property
    def met(self) -> bool:
        """Whether the value is what the goal asks for."""
        sign, limit = self.goal.split()
        return self.value <= float(limit) if sign == "<=" else self.value >= float(limit)


def report(
    name: str,
    goals: Sequence[Goal],
    rows: Sequence[Mapping[str, Any]],
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Print rows and goals, and write ``benchmarks/results/NAME.json``, with ``more`` in it.

    Returns:
        What was written.
    """
    show(name, rows)
    show("goals", [{**asdict(goal), "met": goal.met} for goal in goals])
    result = {
        **described(name),
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
        "rows": list(rows),
        **(more or {}),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{name}.json")
    return result


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table."""
    Console(width=None if sys.stdout.isatty() else 160).print(_table(title, rows))


def described(name: str) -> dict[str, Any]:
    """What every file of results begins with: when, of which commit, with which versions, where."""
    return {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "versions": {"python": platform.python_version(), **_versions()},
        "device": f"cpu, {len(os.sched_getaffinity(0))} cores",
    }


def _table(title: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    rows = list(rows)
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


def _versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in PACKAGES}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
