"""Regrets of every search on every workload, as they are kept beside the result file.

Goals, tables and intervals are made anew from these without a replay (``search.py --again``), and
one search is replayed without the others (``search.py --only NAME``).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, write

from tuner.search.kernel import Array

KEPT_AT = ROOT / "benchmarks" / "data" / "search_curves.json"
DIGITS = 4
"""Of a regret that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One search on all workloads of a table."""

    table: str
    search: str
    history: bool
    ours: bool
    curves: Array
    """Regrets, shape ``(workloads, probes)``."""

    @property
    def key(self) -> tuple[str, str]:
        """Table and search."""
        return self.table, self.search

    def after(self, probes: int) -> Array:
        """Regrets after so many, shape ``(workloads,)``."""
        return np.asarray(self.curves[:, probes - 1])


def keep(all_played: Iterable[Played], path: Path = KEPT_AT) -> None:
    """Write them, one search a line."""
    lines = [json.dumps(_values(one), separators=(",", ":")) for one in all_played]
    write(path, "[\n" + ",\n".join(lines) + "\n]\n")


def kept_before(path: Path = KEPT_AT) -> list[Played]:
    """Those of the last time; none where none were kept."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Played(**{**values, "curves": np.array(values["curves"])}) for values in found]


def _values(one: Played) -> dict[str, Any]:
    return {
        "table": one.table,
        "search": one.search,
        "history": one.history,
        "ours": one.ours,
        "curves": np.round(one.curves, DIGITS).tolist(),
    }
