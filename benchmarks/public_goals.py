"""What is asked of the published rows of memory: ``public_rows.judge`` told what is held to it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from common import Goal
from judging import share
from public_rows import NOTHING_STATED, difference, slope_error

WAYS = {"dry_run": "dry run", "arithmetic": "arithmetic"}
"""How a figure was come to, and its name in a goal."""
DIFFERENCES = (
    ("CodeLlama, sync on each batch: GiB off the measured +0", 6, 4, 0.0, 1.0),
    ("Mixtral, sync on each of 16 batches: GiB off the measured +1", 2, 0, 1.0, 3.0),
    ("Mixtral, 8-bit AdamW: GiB off the measured -14", 3, 2, -14.0, 4.0),
)
"""Of issue 29425: two rows (by their place), the measured difference, what it may be off by."""

Told = Sequence[Mapping[str, Any]]


def issue_goals(told: Told) -> list[Goal]:
    """The seven rows: verdicts, and differences between rows."""
    found = []
    for way, name in WAYS.items():
        right = sum(row[way]["verdict_right"] for row in told if row[way])
        found.append(Goal(name=f"29425, {name}: verdicts right of 7", goal=">= 7", value=right))
        for what, row, other, measured, allowed in DIFFERENCES:
            known = told[row][way] and told[other][way]
            off = abs(difference(told, way, row, other) - measured) if known else inf
            found.append(Goal(name=f"29425, {name}: {what}", goal=f"<= {allowed:g}", value=off))
    return [*found, _unknown("29425", told)]


def dlrover_goals(told: Told, stated: Told) -> list[Goal]:
    """The four rows, with all facts of their script, and the same with none (in ``stated``)."""
    plain = [row for row in stated if row["stated"] == NOTHING_STATED]
    found = []
    for way, name in WAYS.items():
        found += _dlrover(told, way, f"DLRover, {name}")
        found += _dlrover(plain, way, f"DLRover, {name}, its script not stated")
    return [*found, _unknown("DLRover", told)]


def torchtitan_goals(told: Told) -> list[Goal]:
    """The two rows with selective checkpointing, as reserved."""
    worst = max(abs(row["arithmetic"]["error"]) for row in told)
    name = "torchtitan, arithmetic: reserved with selective checkpointing, largest error"
    return [Goal(name=name, goal="<= 0.1", value=worst)]


def _dlrover(told: Told, way: str, what: str) -> list[Goal]:
    known = all(row[way] for row in told)
    worst = max(abs(row[way]["error"]) for row in told) if known else inf
    slope = slope_error(told, way) if known else inf
    return [
        Goal(name=f"{what}: allocated peak, largest error", goal="<= 0.08", value=worst),
        Goal(name=f"{what}: slope in 1/N, error", goal="<= 0.02", value=slope),
    ]


def _unknown(group: str, told: Told) -> Goal:
    without = [not row["dry_run"] or row["arithmetic"]["gib"] is None for row in told]
    return Goal(name=f"{group}: share answered unknown", goal="<= 0", value=share(without))


def interval_goals(told: Told) -> list[Goal]:
    """Published rows that nothing was fitted on, by each way of coming to a figure."""
    found = []
    for way, name in WAYS.items():
        held = [row[way]["inside"] for row in told if row[way] and row["measured_gib"]]
        what = f"29425 and DLRover, {name}: intervals hold the measured"
        found.append(Goal(name=what, goal=">= 0.8", value=share(held)))
    return found
