"""Probes that share rank processes against one process per rank and probe: ``make bench-warm``.

The settings of one study of a small model on CPU ranks are probed as a worker probes them, warm
and cold in turn. It writes ``benchmarks/results/warm.json``: what each finds, how long each
takes, and how much of that is steps whose time is taken. The first warm probe starts the ranks.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common import Goal, report
from gpu.probing import pause
from probe_cases import Case, case

from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from workers.measuring.measure import measure
from workers.measuring.ranks import WarmRanks

SETTINGS = (
    "sharding=ddp,micro_batch_size=4",
    "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false",
    "sharding=full_shard,micro_batch_size=4",
    "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false",
    "sharding=full_shard,micro_batch_size=4,activation_checkpointing=full",
    "sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=2",
    "tp_size=2,micro_batch_size=8",
    "tp_size=2,tp_recompute_allgather=true,micro_batch_size=8",
)
DEADLINE_S = 300.0


def probe(one: Case, ranks: WarmRanks, fidelity: Fidelity) -> Measurement:
    request = ProbeRequest(settings=one.settings, fidelity=fidelity)
    found = Probe(id=1, request=request, state=ProbeState.RUNNING)
    study = Study(
        id="st-benchmark", question=one.question, limits=Limits(), state=StudyState.RUNNING
    )
    return measure(study, found, ranks, stands_in=False, deadline_s=DEADLINE_S, pause=pause)


def times_s(found: Measurement) -> list[float]:
    """Seconds of each step whose time was taken; computed ones, where nothing is sent."""
    by_count = found.emulation.compute_s if found.emulation else found.step_times_s
    return [seconds for times in by_count.values() for seconds in times]


def row(one: Case, fidelity: Fidelity, cold: Measurement, warm: Measurement) -> dict[str, Any]:
    """Both probes of one settings side by side."""
    assert cold.memory is not None
    assert warm.memory is not None
    return {
        "settings": str(one.settings),
        "fidelity": str(fidelity),
        "cold_peak_bytes": cold.memory.allocated_bytes,
        "warm_peak_bytes": warm.memory.allocated_bytes,
        "same_losses": _same_losses(cold, warm),
        "cold_step_s": round(median(times_s(cold)), 4),
        "warm_step_s": round(median(times_s(warm)), 4),
        "cold_wall_s": round(cold.wall_s, 2),
        "warm_wall_s": round(warm.wall_s, 2),
        "saved_s": round(cold.wall_s - warm.wall_s, 2),
        "cold_share": round(sum(times_s(cold)) / cold.wall_s, 3),
        "warm_share": round(sum(times_s(warm)) / warm.wall_s, 3),
    }


def _same_losses(cold: Measurement, warm: Measurement) -> bool | None:
    """Whether losses and gradient norms are equal to the bit; ``None`` where there are none."""
    if not cold.losses:
        return None
    steps = min(len(cold.losses), len(warm.losses))  # time decides how many are taken
    same = cold.losses[:steps] == warm.losses[:steps]
    return same and cold.gradient_norms == warm.gradient_norms


def compared(wanted: Sequence[Case], fidelity: Fidelity, folder: Path) -> list[dict[str, Any]]:
    """The rows of all settings; what the machine does beside it falls on both alike."""
    rows: list[dict[str, Any]] = []
    with WarmRanks(folder=folder) as ranks, WarmRanks(folder=folder, keep=False) as anew:
        for one in wanted:
            cold, warm = probe(one, anew, fidelity), probe(one, ranks, fidelity)
            for found in (cold, warm):
                assert found.outcome is Outcome.OK, found.detail
            rows.append({"starts_ranks": not rows, **row(one, fidelity, cold, warm)})
    return rows


def goals(rows: Sequence[dict[str, Any]]) -> list[Goal]:
    later = [one for one in rows if not one["starts_ranks"]]
    memory = max(abs(r["warm_peak_bytes"] / r["cold_peak_bytes"] - 1) for r in rows)
    steps = median(r["warm_step_s"] / r["cold_step_s"] for r in rows)
    return [
        Goal(name="largest difference of peak memory", goal="<= 0.01", value=memory),
        Goal(
            name="all losses and gradient norms the same to the bit (1: yes)",
            goal=">= 1",
            value=float(all(r["same_losses"] is not False for r in rows)),
        ),
        Goal(name="warm step over cold step, median: at most", goal="<= 1.05", value=steps),
        Goal(name="warm step over cold step, median: at least", goal=">= 0.95", value=steps),
        Goal(
            name="measured steps of a warm probe's wall time, median share",
            goal=">= 0.5",
            value=median(r["warm_share"] for r in later),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="stories15m", help="a model of the catalogue")
    parser.add_argument("--sequence-length", type=int, default=256)
    options = parser.parse_args()
    rest = f"sequence_length={options.sequence_length}"
    measured = [case(f"{options.model} cpu:2 {text} {rest}") for text in SETTINGS]
    emulated = [case(f"{options.model} 2x4xcpu {text} {rest}") for text in SETTINGS[:6]]
    with tempfile.TemporaryDirectory() as name:
        rows = compared(measured, Fidelity.MEASURED, Path(name))
        rows += compared(emulated, Fidelity.EMULATED, Path(name))
    report("warm", goals(rows), rows)


if __name__ == "__main__":
    main()
