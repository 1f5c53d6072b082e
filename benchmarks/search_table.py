"""What is said of replays, in figures: regrets, differences to rivals, and the goals.

Regrets of every search on every workload are kept beside the result file: goals, tables and
intervals are made anew from these without a replay (``search.py --again``), and one search is
replayed without the others (``search.py --only NAME``).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Goal, write
from search_lines import KEPT

from tuner.search.kernel import Array

PROBES = (1, 3, 5, 8)
"""After how many regrets are told."""
RESAMPLED = 10_000
"""Times that workloads are drawn for an interval."""
MIDDLE = 0.95
"""Share of the draws that an interval holds."""
SWEEP_GOALS = {
    (False, "mean"): (0.15, 0.05, 0.025, 0.01),
    (False, "median"): (0.05, 0.005, 0.0, 0.0),
    (True, "mean"): (0.12, 0.04, 0.025, 0.005),
}
"""Of the regret after each of :data:`PROBES`, by history and statistic."""
PARTS_GOALS = {3: 0.045, 8: 0.01}
"""Of the mean regret on random parts of the sweep without history, by probes."""
VTRAIN_GOALS = {3: 0.0, 5: 0.0, 8: 0.0}
"""Of the mean regret with history, by probes."""
KEPT_AT = ROOT / "benchmarks" / "data" / "search_curves.json"
DIGITS = 4
"""Of a regret that is kept."""
KNOWS = {False: "no history", True: "history"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One search on all workloads of a table."""

    table: str
    search: str
    history: bool
    ours: bool
    curves: Array  # regrets, shape `(workloads, probes)`

    @property
    def key(self) -> tuple[str, str]:
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


def line(played: Played) -> dict[str, Any]:
    return {
        "table": played.table,
        "search": played.search,
        "knows": KNOWS[played.history],
        **{f"mean@{k}": round(float(played.after(k).mean()), 4) for k in PROBES},
        **{f"median@{k}": round(float(np.median(played.after(k))), 4) for k in PROBES},
        **{f"largest@{k}": round(float(played.after(k).max()), 4) for k in (3, 8)},
    }


def kept(all_played: Sequence[Played], table: str, *, history: bool) -> Played:
    """The line that the product is nearest to."""
    return next(p for p in all_played if p.table == table and p.search == KEPT[history])


def workload_lines(
    all_played: Sequence[Played], table: str, facts: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Every workload's own line: regrets of what is kept, and ``facts`` of its rows."""
    found = []
    both = [(history, kept(all_played, table, history=history)) for history in (False, True)]
    for place, (name, own) in enumerate(facts.items()):
        regrets = {
            f"{KNOWS[history]}@{k}": round(float(one.after(k)[place]), 4)
            for history, one in both
            for k in PROBES
        }
        found.append({"table": table, "workload": name, **own, **regrets})
    return found


def differences(all_played: Sequence[Played], table: str) -> list[dict[str, Any]]:
    """What is kept against each other search: mean difference of regrets and its interval.

    Below zero, what is kept is better. What is kept without history is held against what knows no
    history either, and what is kept with history against all.
    """
    own = [one for one in all_played if one.table == table]
    return [
        _difference(kept(own, table, history=history), other)
        for history in (False, True)
        for other in own
        if other.search not in KEPT.values() and (history or not other.history)
    ]


def _difference(one: Played, other: Played) -> dict[str, Any]:
    found: dict[str, Any] = {"table": one.table, "kept": one.search, "against": other.search}
    for k in PROBES:
        off = one.after(k) - other.after(k)
        low, high = interval(off)
        found[f"@{k}"] = [round(value, 4) for value in (float(off.mean()), low, high)]
    return found


def interval(off: Array) -> tuple[float, float]:
    """Of a mean over workloads: workloads are drawn anew, with replacement (paired bootstrap)."""
    random = np.random.default_rng(0)
    drawn = off[random.integers(len(off), size=(RESAMPLED, len(off)))].mean(1)
    low, high = np.quantile(drawn, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    return float(low), float(high)


def stability_line(table: str, search: str, history: bool, curves: Array) -> dict[str, Any]:
    """Regrets on random parts of the tables.

    Args:
        table: which.
        search: which.
        history: whether it knows of other workloads.
        curves: regrets, shape ``(parts, workloads, probes)``.
    """
    found = {"table": table, "search": search, "knows": KNOWS[history]}
    for k in PROBES:
        means = curves[:, :, k - 1].mean(1)
        error = float(means.std(ddof=1) / len(means) ** 0.5) if len(means) > 1 else 0.0
        found |= {f"mean@{k}": round(float(means.mean()), 4), f"error@{k}": round(error, 4)}
    return found


def goals(
    rows: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]], worse: float
) -> list[Goal]:
    """All that is asked of regrets: on whole tables, on random parts, and how many standard errors
    history is worse than none at most.
    """
    own = {(row["table"], row["search"]): row for row in rows}
    found = []
    for (history, statistic), limits in SWEEP_GOALS.items():
        row = own["sweep", KEPT[history]]
        found += [
            _goal(f"sweep, {KNOWS[history]}, {_probes(k)}: {statistic} regret", limit,
                  row[f"{statistic}@{k}"])
            for k, limit in zip(PROBES, limits, strict=True)
        ]  # fmt: skip
    part = next(row for row in parts if row["search"] == KEPT[False])
    vtrain = own["vTrain", KEPT[True]]
    return [
        *found,
        *(_goal(f"random parts of the sweep, no history, {_probes(k)}: mean regret", limit,
                part[f"mean@{k}"]) for k, limit in PARTS_GOALS.items()),
        *(_goal(f"vTrain, history, {_probes(k)}: mean regret", limit, vtrain[f"mean@{k}"])
          for k, limit in VTRAIN_GOALS.items()),
        _goal("history worse than none: standard errors, at most", 1.0, worse),
    ]  # fmt: skip


def history_worse(all_played: Sequence[Played]) -> float:
    """Over tables and probes, the largest mean of regret with history less regret without, in
    standard errors of that mean over workloads.
    """
    found = []
    for table in dict.fromkeys(one.table for one in all_played):
        with_it, without = (kept(all_played, table, history=h) for h in (True, False))
        for k in PROBES:
            off = with_it.after(k) - without.after(k)
            error = float(off.std(ddof=1)) / len(off) ** 0.5
            found.append(float(off.mean()) / max(error, 1e-9))
    return round(max(found), 2)


def _goal(name: str, limit: float, value: float) -> Goal:
    return Goal(name=name, goal=f"<= {limit:g}", value=value)


def _probes(count: int) -> str:
    return f"{count} probe{'s' if count > 1 else ''}"


def percents(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same rows for readers: regrets in percent."""
    return [{name: _percent(name, value) for name, value in row.items()} for row in rows]


def _percent(name: str, value: Any) -> Any:
    if "@" not in name:
        return value
    if isinstance(value, Sequence):
        mean, low, high = (f"{100 * one:+.1f}" for one in value)
        return f"{mean}% ({low} to {high})"
    return f"{100 * value:.1f}%"
