"""How many steps a script's probe takes: the same on every rank."""

import json
from dataclasses import dataclass
from pathlib import Path

from tuner.integrations.record import write_json

PROBE = "TUNER_PROBE"
"""Environment variable with a probe's folder."""
PROCESS = "TUNER_PROBE_PROCESS"
"""Environment variable with the number of the process that is the rank: what a rank starts, such
as processes that load data, is none."""
PLAN = "probe.json"
"""What a probe's ranks are told, in the probe's folder."""
STEPS = "steps.json"
"""What rank 0 tells the others, once it knows how long a step takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a probe's ranks are told."""

    folder: Path
    """For records."""
    accumulation: int
    """Micro-batches of an optimizer step that were asked for."""
    warmup_steps: int
    """Steps that are not timed."""
    measured_steps: int
    """Steps that are timed, at most."""
    minimum_steps: int
    """Steps that are timed, at least."""
    time_budget_s: float
    """Seconds for the timed steps."""

    def affordable(self, step_s: float) -> int:
        """Steps in all, when one takes so many seconds."""
        affordable = int(self.time_budget_s / max(step_s, 1e-9))
        timed = max(self.minimum_steps, min(self.measured_steps, affordable))
        return self.warmup_steps + timed


def seen_path(folder: Path, rank: int) -> Path:
    """The file that says that a rank's script has imported :mod:`tuner.integrations`."""
    return folder / f"seen-{rank:05d}"


def read_plan(folder: Path) -> Plan:
    """The plan in a probe's folder."""
    return Plan(folder=folder, **json.loads((folder / PLAN).read_text(encoding="utf-8")))


def tell_steps(folder: Path, steps: int) -> None:
    """Tell all ranks after how many steps they end."""
    write_json(folder / STEPS, {"steps": steps})


def told_steps(folder: Path) -> int | None:
    """After how many steps to end, if rank 0 has told it."""
    try:
        return int(json.loads((folder / STEPS).read_text(encoding="utf-8"))["steps"])
    except FileNotFoundError:
        return None
