"""Peaks of real steps as torch's profiler counts them: ``python benchmarks/profiled_peaks.py``.

``make bench-cpu-probes`` runs it too. It is a count that does not pass through our tracker, of
rank 0 in a run of all ranks. It writes ``benchmarks/data/profiled_peaks.json``.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import described
from cpu_probes import FEW_STEPS
from probe_cases import Case, profiled_cases, spec_of

from tuner.core.measurement import Fidelity
from workers.launchers.base import Job, rank_environment
from workers.measuring.records import write_json
from workers.probe.orders import SPEC

HERE = Path(__file__).parent
RESULT = HERE / "data" / "profiled_peaks.json"
REPETITIONS = 3
DEADLINE_S = 180.0


def measured(case: Case) -> dict[str, Any]:
    """What rank 0 saw in one run of a case.

    Raises:
        RuntimeError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, ranks = Path(name), case.cluster.world_size
        write_json(folder / SPEC, spec_of(case, Fidelity.MEASURED, FEW_STEPS))
        argv = (sys.executable, "-P", str(HERE / "profiled_rank.py"), str(folder))
        job = Job(argv=argv, directory=folder, ranks=ranks, device="cpu", deadline_s=DEADLINE_S)
        started = [
            subprocess.Popen(argv, env=rank_environment(job, rank, os.environ))
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(DEADLINE_S) for process in started]
        finally:
            for process in started:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{case.text}: exit codes {codes}")
        found: dict[str, Any] = json.loads((folder / "profiled.json").read_text())
    return found


def main() -> None:
    rows = []
    for case in profiled_cases():
        started = time.perf_counter()
        runs = [measured(case) for _ in range(REPETITIONS)]
        peaks = [tuple(step.values()) for run in runs for step in run["steps"]]
        print(case.text, peaks, f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
        rows.append({"case": case.text, "runs": runs})
    RESULT.write_text(json.dumps({**described("profiled_peaks"), "rows": rows}, indent=1) + "\n")
    print(f"written: benchmarks/data/{RESULT.name}")


if __name__ == "__main__":
    main()
