"""A first look at a GPU: runs the checks of :mod:`gpu.smoke_lines`, prints and keeps them."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common import RESULTS, as_rows, described, show, write
from dry import LIMIT_S, Dried, dry_run_all
from probe_cases import Case, case

from gpu.cases import BRIEF
from gpu.place import Place, this_place
from gpu.probing import pause, probe, why_no_8bit
from gpu.rows import LEFT_OUT
from gpu.smoke_lines import Found, Tried, Verdict, goals, lines
from tuner.core.cluster import Device
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.cost.prediction import predict
from tuner.dryrun import DryRunner
from tuner.errors import ProbeError, UsageError
from tuner.machine import usable_cores, visible_gpus
from workers.measuring.ranks import Kind, WarmRanks

MODEL = "llama-3.2-1b:4"
"""The published shape with 4 of its 16 layers: what peaks is as in the whole, and steps are short.
It takes 4 to 10 GiB."""
STATED = "sequence_length=1024"
CASES: Mapping[str, str] = {
    "fp32, grouped queries": "8 sharding=full_shard,micro_batch_size=3 precision=fp32",
    "ddp": "8 sharding=ddp,micro_batch_size=2 precision=bf16",
    "full_shard": "8 sharding=full_shard,micro_batch_size=2 precision=bf16",
    "checkpointing": "8 sharding=full_shard,micro_batch_size=2,activation_checkpointing=full"
    " precision=bf16",
    "adamw_8bit": "8 sharding=ddp,micro_batch_size=2 precision=bf16 optimizer=adamw_8bit",
    "2 ranks": "2 sharding=ddp,micro_batch_size=2 precision=bf16",
}
"""Ranks, settings and what else differs, by name. As rank 0 alone, but for the last."""
COLD = ("ddp", "full_shard")
"""In a process of their own each."""
WARM = ("fp32, grouped queries", "ddp", "full_shard", "checkpointing", "adamw_8bit")
"""One after the other in one process. The first takes most: what it left would be seen."""
CAP = 0.9
"""Of the peak that settings have, under which they run out of memory."""
DEADLINE_S = 180.0
"""Of one probe; a real one takes a tenth of it."""
JOBS = 4
"""Dry runs at the same time."""


def cases_on(place: Place, gpus: int) -> dict[str, Case]:
    texts = {name: text for name, text in CASES.items() if name != "2 ranks" or gpus > 1}
    found = {}
    for name, text in texts.items():
        ranks, *others = text.split()
        found[name] = case(f"{MODEL} {place.cluster(int(ranks))} {' '.join(others)} {STATED}")
    return found


def probe_all(cases: Mapping[str, Case]) -> tuple[dict[str, Measurement], int]:
    """Every probe's measurement by its name, and the cap of the one that has to run out."""
    found: dict[str, Measurement] = {}

    def run(name: str, ranks: WarmRanks, of: str, limit_bytes: int | None = None) -> None:
        fidelity = Fidelity.MEASURED if of == "2 ranks" else Fidelity.EMULATED
        started = time.monotonic()
        try:
            found[name] = probe(
                cases[of],
                ranks,
                fidelity=fidelity,
                steps=BRIEF,
                limit_bytes=limit_bytes,
                deadline_s=DEADLINE_S,
            ).measurement
        except ProbeError as error:
            found[name] = Measurement(outcome=Outcome.CRASHED, detail=str(error))
        seconds = time.monotonic() - started
        print(f"{name}: {found[name].outcome}, {seconds:.0f} s", file=sys.stderr, flush=True)

    with _ranks(keep=False) as ranks:
        for name in COLD:
            run(f"{name}, cold", ranks, name)
    with _ranks(keep=True) as ranks:
        for name in WARM:
            if name in cases:
                run(f"{name}, warm" if name in COLD else name, ranks, name)
        cold = found["full_shard, cold"].memory
        cap = int(CAP * cold.allocated_bytes) if cold else 0
        if cold:
            run("capped", ranks, "full_shard", cap)
        run("full_shard, after", ranks, "full_shard")
        if "2 ranks" in cases:
            run("2 ranks", ranks, "2 ranks")
    return found, cap


@contextmanager
def _ranks(*, keep: bool) -> Iterator[WarmRanks]:
    with (
        tempfile.TemporaryDirectory(prefix="gpu-smoke-") as name,
        WarmRanks(folder=Path(name).resolve(), keep=keep) as ranks,
    ):
        yield ranks


def with_predictions(
    found: Mapping[str, Measurement], cases: Mapping[str, Case], dried: Dried | None
) -> dict[str, Tried]:
    """Each probe beside what was predicted of it, by its dry run where there is one."""
    tried = {}
    for name, measurement in found.items():
        base = name.removesuffix(", cold").removesuffix(", warm").removesuffix(", after")
        one = cases["full_shard" if name == "capped" else base]
        dry_run = dried.of(one) if dried else None
        profile = dry_run.profile if dry_run else None
        told = predict(one.workload, one.cluster, one.framework, one.settings,
                       headroom=0.0, profile=profile)  # fmt: skip
        by = "dry run" if profile else "arithmetic"
        tried[name] = Tried(measurement=measurement, prediction=told, by=by)
    return tried


def _dry_runs(cases: Sequence[Case]) -> Dried | None:
    try:
        with DryRunner(limit_s=LIMIT_S, jobs=min(JOBS, usable_cores())) as runner:
            return dry_run_all(cases, None, runner)
    except ProbeError as error:  # predictions are by arithmetic then
        print(f"no dry run: {error}", file=sys.stderr, flush=True)
        return None


def find_all(place: Place, gpus: int) -> Found:
    """Look at the GPUs as a worker does, and probe the first one if torch and NCCL can use all."""
    started = time.monotonic()
    with _ranks(keep=False) as ranks:
        kind = Kind(ranks=gpus, world_size=gpus, device="cuda")
        answers = ranks.ask(kind, {"check": "cuda"}, pause)
    assert answers is not None
    look = answers.records[0].get("hardware", {}) if answers.records else {}
    found = Found(look=look, why_unusable=answers.why_unusable)
    if found.why_unusable:
        return replace(found, wall_s=time.monotonic() - started)
    cases, left_out = cases_on(place, gpus), {}
    if why := why_no_8bit(cases["adamw_8bit"]):
        left_out["adamw_8bit"] = why
        del cases["adamw_8bit"]
    if "2 ranks" not in cases:
        left_out["2 ranks"] = "there is one GPU"
    with ThreadPoolExecutor(1) as pool:
        dried = pool.submit(_dry_runs, list(cases.values()))
        probes, cap_bytes = probe_all(cases)
        tried = with_predictions(probes, cases, dried.result())
    return replace(found, probes=tried, cap_bytes=cap_bytes, left_out=left_out,
                   wall_s=time.monotonic() - started)  # fmt: skip


def keep(found: Found, place: Place, path: Path) -> None:
    probes = {name: {key: value for key, value in one.measurement.as_dict().items()
                     if key not in LEFT_OUT} for name, one in found.probes.items()}  # fmt: skip
    text = json.dumps(
        {
            **described(f"gpu-smoke-{place.gpu}", place.title),
            "goals": as_rows(goals(found)),
            "rows": [line.as_dict() for line in lines(found)],
            "look": found.look,
            "cap_bytes": found.cap_bytes,
            "probes": probes,
        },
        indent=1,
        allow_nan=False,
    )
    write(path, text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu_smoke.py")
    parser.add_argument("--out", type=Path, help="the result file; by default of the card")
    options = parser.parse_args()
    try:
        place = this_place(Device.CUDA, reduced=False)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    found = find_all(place, len(visible_gpus()))
    table = lines(found)
    show(f"gpu-smoke on {place.title}", [line.as_dict() for line in table])
    out = options.out or RESULTS / f"gpu-smoke-{place.gpu}.json"
    keep(found, place, out)
    print(f"written: {out}")
    failed = [line.check for line in table if line.verdict is Verdict.FAIL]
    if failed:
        print(f"FAIL: {'; '.join(failed)}")
    return 1 if failed else 0
