"""Measured memory of small models on CPU ranks: ``make bench-cpu-probes`` (10 minutes).

Every case of ``probe_cases.py`` is probed as a worker probes, by its spec, on all ranks; only fewer
steps are timed, for memory alone is wanted. The cases are run through again and again, so that
repetitions lie minutes apart. It writes ``benchmarks/data/cpu_probes.json``.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from common import described
from probe_cases import Case, cases, spec_of

from tuner.core.measurement import Fidelity, Outcome
from tuner.machine import usable_cores
from workers.launchers.base import Job, rank_environment
from workers.measuring.records import BadRecord, RankRecord, log_path, read_records, write_json
from workers.probe.orders import SPEC
from workers.probe.run import run_probe

RESULT = Path(__file__).parent / "data" / "cpu_probes.json"
REPETITIONS = 3
DEADLINE_S = 180.0
FEW_STEPS = {"measured_steps": 1, "minimum_steps": 1, "time_budget_s": 0.0, "warmup_steps": 2}
"""Both warm-up steps are tracked: the second is in steady state."""


def run_ranks(folder: Path, ranks: int) -> str:
    """Run all ranks, forked from this process, and wait: the outcome with its detail.

    A rank does what the launcher's does; but torch is imported once for all, and not for each.
    """
    job = Job(argv=(), directory=folder, ranks=ranks, device="cpu", deadline_s=DEADLINE_S)
    started = time.monotonic()
    waiting = {_fork_rank(job, rank) for rank in range(ranks)}
    while waiting and time.monotonic() - started < DEADLINE_S:
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.02)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    records = read_records(folder, ranks)
    bad = [r for r in records if isinstance(r, BadRecord) or r.outcome is not Outcome.OK]
    return str(bad[0]) if bad else "ok"


def _fork_rank(job: Job, rank: int) -> int:
    """Start one rank; its process number."""
    if pid := os.fork():
        return pid
    with log_path(job.directory, rank).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(rank_environment(job, rank, os.environ))
    torch.set_num_threads(max(1, usable_cores() // job.ranks))  # as the launcher's environment says
    record, _ = run_probe(job.directory / SPEC, f"file://{job.directory}/rendezvous")
    record.write(job.directory)
    os._exit(0)


def measured(case: Case) -> dict[str, Any]:
    """One run of a case: peaks by rank, and the phases of the rank that needs most."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder / SPEC, spec_of(case, Fidelity.MEASURED, FEW_STEPS))
        outcome = run_ranks(folder, case.cluster.world_size)
        records = read_records(folder, case.cluster.world_size)
    seconds = round(time.perf_counter() - started, 1)
    if outcome != "ok":
        return {"outcome": outcome, "wall_s": seconds}
    memories = [r.memory for r in records if isinstance(r, RankRecord) and r.memory is not None]
    worst = max(memories, key=lambda memory: memory.allocated_bytes)
    return {
        "outcome": outcome,
        "peak_bytes_by_rank": [memory.allocated_bytes for memory in memories],
        "peak_bytes_by_phase": dict(worst.by_phase),
        "wall_s": seconds,
    }


def measure_all(wanted: Iterable[Case], repetitions: int) -> dict[str, list[dict[str, Any]]]:
    """The runs of each case by its text."""
    runs: dict[str, list[dict[str, Any]]] = {case.text: [] for case in wanted}
    for repetition in range(repetitions):
        for case in wanted:
            found = measured(case)
            runs[case.text].append(found)
            print(repetition + 1, case.text, _short(found), file=sys.stderr, flush=True)
    return runs


def _short(found: Mapping[str, Any]) -> str:
    peaks = found.get("peak_bytes_by_rank", ())
    return f"{found['outcome']} {[round(peak / 1e6, 2) for peak in peaks]} MB {found['wall_s']} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="texts of cases; nothing is written")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args()
    wanted = [case for case in cases() if options.only in case.text]
    runs = measure_all(wanted, options.repetitions)
    rows = [{"case": case.text, **case.as_dict(), "runs": runs[case.text]} for case in wanted]
    if options.only:
        return
    RESULT.write_text(json.dumps({**described("cpu_probes"), "rows": rows}, indent=1) + "\n")
    print(f"written: benchmarks/data/{RESULT.name}")


if __name__ == "__main__":
    main()
