"""Measured memory of small models on CPU ranks: ``make bench-cpu-probes`` (10 minutes).

Every case of ``probe_cases.py`` is probed as a worker probes, by its spec, on all ranks; only fewer
steps are timed, for memory alone is wanted. The cases are run through again and again, so that
repetitions lie minutes apart. It writes ``benchmarks/data/cpu_probes.json``.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common import described
from gpu.probing import pause
from probe_cases import Case, cases, spec_of

from tuner.core.measurement import Fidelity
from workers.measuring.measure import kind_of
from workers.measuring.ranks import WarmRanks

RESULT = Path(__file__).parent / "data" / "cpu_probes.json"
REPETITIONS = 3
DEADLINE_S = 180.0
FEW_STEPS = {"measured_steps": 1, "minimum_steps": 1, "time_budget_s": 0.0, "warmup_steps": 2}
"""Both warm-up steps are tracked: the second is in steady state."""


def measured(case: Case, ranks: WarmRanks) -> dict[str, Any]:
    """One run of a case: peaks by rank, and the phases of the rank that needs most."""
    fidelity = Fidelity.MEASURED
    spec, kind = spec_of(case, fidelity, FEW_STEPS), kind_of(case.cluster, fidelity)
    probed = ranks.measure(kind, spec, deadline_s=DEADLINE_S, pause=pause)
    found = probed.measurement
    if found.memory is None:
        outcome = f"{found.outcome} {found.detail}"
        return {"outcome": outcome, "wall_s": round(found.wall_s, 1)}
    return {
        "outcome": str(found.outcome),
        "peak_bytes_by_rank": list(found.memory.per_rank_bytes),
        "peak_bytes_by_phase": dict(found.memory.by_phase),
        "wall_s": round(found.wall_s, 1),
    }


def measure_all(wanted: Iterable[Case], repetitions: int) -> dict[str, list[dict[str, Any]]]:
    """The runs of each case by its text."""
    runs: dict[str, list[dict[str, Any]]] = {case.text: [] for case in wanted}
    with tempfile.TemporaryDirectory() as name, WarmRanks(folder=Path(name).resolve()) as ranks:
        for repetition in range(repetitions):
            for case in wanted:
                found = measured(case, ranks)
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
