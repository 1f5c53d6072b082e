"""Rehearsed ranks against ranks that all run, and dry runs: ``make bench-rehearsed``.

Rank 0 of each class of configurations is rehearsed alone, as ``--fidelity rehearsed`` does it, and
runs as one of 2 and of 4 ranks, each a process over the same stand-in for CUDA's libraries, with
torch's own process groups of NCCL. Both peaks are torch's CUDA allocator's, which no GPU is needed
for; the dry run's is counted on tensors without memory. ``benchmarks/results/rehearsed.json``.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import Goal, report  # noqa: E402
from dry import dry_run_all  # noqa: E402
from gpu.probing import pause  # noqa: E402
from probe_cases import Case, case, spec_of  # noqa: E402

from tuner.core.measurement import Fidelity  # noqa: E402
from tuner.cost.prediction import predict  # noqa: E402
from tuner.machine import why_no_standin  # noqa: E402
from workers.launchers.local import LocalLauncher  # noqa: E402
from workers.launchers.site import rehearsal_site  # noqa: E402
from workers.measuring.measure import kind_of  # noqa: E402
from workers.measuring.ranks import WarmRanks  # noqa: E402
from workers.measuring.records import RankRecord  # noqa: E402

NAME, DEVICE = "rehearsed", "torch's CUDA allocator, no GPU"
RANKS = (2, 4)
MODEL = "tinyllama-1.1b:4"
WITHIN = 0.005
DEADLINE_S = 600.0
STEPS = {"warmup_steps": 2, "tracked_steps": 2, "measured_steps": 1, "minimum_steps": 1,
         "time_budget_s": 0.1}  # fmt: skip


def classes() -> Iterator[str]:
    """Sharding, synchronization, checkpointing, precision and adapter of each."""

    def text(sharding: str, each: bool, how: str, rest: str) -> str:
        sync = str(each).lower()
        knobs = f"sharding={sharding},micro_batch_size=2,gradient_accumulation_steps=2"
        knobs = f"{knobs},sync_each_batch={sync},activation_checkpointing={how}"
        return f"{knobs} sequence_length=256 {rest}"

    shardings = ("ddp", "shard_grad_op", "full_shard")
    for precision, how, each, sharding in product(
        ("bf16", "bf16_mixed"), ("none", "full"), (True, False), shardings
    ):
        yield text(sharding, each, how, f"precision={precision}")
    for how, sharding in product(("none", "full"), shardings):
        yield text(sharding, True, how, "precision=bf16 adapter=lora")
    for sharding in ("ddp", "full_shard"):
        yield text(sharding, False, "none", "precision=bf16_mixed adapter=lora")
        yield text(sharding, True, "none", "precision=fp32")
        yield text(sharding, True, "full", "precision=fp32")
    for how in ("selective", "every_2"):
        yield text("full_shard", True, how, "precision=bf16")
        yield text("ddp", False, how, "precision=bf16_mixed")


class Kept:
    """Peaks by case, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        is_there = path is not None and path.exists()
        self.peaks: dict[str, Any] = json.loads(path.read_text()) if path and is_there else {}

    def add(self, key: str, peaks: Mapping[str, int]) -> None:
        self.peaks[key] = peaks
        if self._path is not None:
            self._path.write_text(json.dumps(self.peaks))


def peaks(
    cases: Sequence[Case], fidelity: Fidelity, folder: Path, kept: Kept
) -> Iterator[tuple[Case, Mapping[str, int]]]:
    """Peaks of rank 0 of each case, in bytes: allocated and reserved; those kept are not run."""
    cluster = cases[0].cluster
    launcher = rehearsal_site(cluster).launcher
    if fidelity is Fidelity.MEASURED:
        assert isinstance(launcher, LocalLauncher)
        more = {"STANDIN_DEVICES": str(cluster.world_size)}
        launcher = LocalLauncher(inherited={**launcher.inherited, **more})
    with WarmRanks(folder=folder, launcher=launcher) as ranks:
        for one in cases:
            key = f"{fidelity} {one.text}"
            if key not in kept.peaks:
                started = time.monotonic()
                spec = spec_of(one, fidelity, STEPS)
                kind = kind_of(cluster, fidelity)
                found = ranks.measure(kind, spec, deadline_s=DEADLINE_S, pause=pause)
                first = found.records[0] if found.records else None
                if not isinstance(first, RankRecord) or first.memory is None:
                    raise SystemExit(f"{key}: {found.measurement.outcome}"
                                     f" {found.measurement.detail}")  # fmt: skip
                memory = first.memory
                found_bytes = {
                    "allocated": memory.allocated_bytes,
                    "reserved": memory.reserved_bytes,
                }
                kept.add(key, found_bytes | dict(memory.by_phase))
                print(f"{time.monotonic() - started:.0f} s {key}", file=sys.stderr, flush=True)
            yield one, kept.peaks[key]


def rows_of(world: int, lines: Sequence[str], kept: Kept) -> Iterator[dict[str, Any]]:
    """A row for each class on so many ranks."""
    cases = [case(f"{MODEL} {world}xh100-80gb {line}") for line in lines]
    dried = dry_run_all(cases)
    with tempfile.TemporaryDirectory() as name:
        ran = dict(enumerate(peaks(cases, Fidelity.MEASURED, Path(name), kept)))
        alone = peaks(cases, Fidelity.REHEARSED, Path(name), kept)
        for number, (one, rehearsed) in enumerate(alone):
            dry_run, every = dried.of(one), ran[number][1]
            said = predict(
                one.workload,
                one.cluster,
                one.framework,
                one.settings,
                profile=dry_run.profile if dry_run else None,
            )
            counted = said.allocated_bytes.value or 0.0
            yield {
                "ranks": world,
                **told(one),
                "rehearsed_bytes": rehearsed["allocated"],
                "ran_bytes": every["allocated"],
                "off": round(rehearsed["allocated"] / every["allocated"] - 1, 5),
                "reserved_off": round(rehearsed["reserved"] / every["reserved"] - 1, 5),
                "dry_run_bytes": int(counted),
                "dry_run_off": round(counted / rehearsed["allocated"] - 1, 5),
                "basis": str(said.basis),
            }


def told(one: Case) -> dict[str, str]:
    settings, adapter = one.settings, one.workload.adapter
    return {
        "sharding": str(settings.sharding),
        "sync_each_batch": str(settings.sync_each_batch).lower(),
        "checkpointing": str(settings.activation_checkpointing),
        "precision": str(one.workload.precision),
        "adapter": str(adapter.method) if adapter else "",
    }


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for world in RANKS:
        mine = [row for row in rows if row["ranks"] == world]
        for name, words in (("off", "those that all run"), ("dry_run_off", "their dry run")):
            what = f"rank 0 of {world} rehearsed alone against {words}, largest difference"
            worst = max((abs(row[name]) for row in mine), default=None)
            found.append(Goal(name=what, goal=f"<= {WITHIN}", value=worst))
    number = min(sum(row["ranks"] == world for row in rows) for world in RANKS)
    return [*found, Goal(name="classes", goal=">= 40", value=number)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="rehearsed.py", description=__doc__)
    parser.add_argument("--most", type=int, metavar="N", help="so many classes")
    parser.add_argument("--kept", type=Path, help="a file of peaks that are not found again")
    options = parser.parse_args()
    if why := why_no_standin():
        print(f"{why}: make cuda-env installs what it needs", file=sys.stderr)
        return 2
    kept = Kept(options.kept)
    lines = list(classes())[: options.most]
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    rows = [row for world in RANKS for row in rows_of(world, lines, kept)]
    report(NAME, goals(rows), rows, {"device": DEVICE})
    return 0


if __name__ == "__main__":
    sys.exit(main())
