"""What every benchmark shares: its goals, its table, its result file.

Standard library only: a machine with a GPU may have no more than training needs.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMIT = "BENCH_COMMIT"
"""Environment variable that names the commit where there is no git."""
PACKAGES = (
    "torch", "transformers", "accelerate", "numpy", "optuna", "scipy", "sqlalchemy", "typer",
    "rich", "xgboost-cpu", "fastapi", "starlette", "uvicorn", "psycopg",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure that is held to something."""

    name: str  # what was measured, with its unit
    goal: str  # such as `<= 0.3`
    value: float | None  # what was seen; `None` where it has not been measured

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
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
    judged = as_rows(goals)
    show("goals", judged)
    result = {
        **described(name),
        "goals": judged,
        "rows": list(rows),
        **(more or {}),
    }
    write(RESULTS / f"{name}.json", json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{name}.json")
    return result


def as_rows(goals: Iterable[Goal]) -> list[dict[str, Any]]:
    """Goals with what became of them, as a result file has them."""
    return [{**asdict(goal), "met": goal.met} for goal in goals]


def write(path: Path, text: str) -> None:
    """Write a file at once or not at all, and its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table: its columns are the rows' keys, as they first come up."""
    print("\n".join([title, *_table(rows), ""]))


def described(name: str, device: str = "") -> dict[str, Any]:
    """What every file of results begins with: when, of which commit, with which versions, where.

    Args:
        name: of the benchmark.
        device: what it ran on; by default this machine's cores.
    """
    return {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": os.environ.get(COMMIT) or _git("rev-parse", "--short", "HEAD") or "unknown",
        "versions": {"python": platform.python_version(), **_versions()},
        "device": device or f"cpu, {len(os.sched_getaffinity(0))} cores",
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table whose columns are as wide as their widest cell."""
    if not rows:
        return ["  (no rows)"]
    head = list(dict.fromkeys(key for row in rows for key in row))
    cells = [head, *([_cell(row.get(key, "")) for key in head] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return [f"  {line}" for line in (lines[0], "  ".join("-" * w for w in widths), *lines[1:])]


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
