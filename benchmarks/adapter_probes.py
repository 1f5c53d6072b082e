"""LoRA and QLoRA on CPU ranks against dry runs: ``make bench-adapter-probes``, some minutes.

Every case of :func:`probe_cases.adapter_cases` is probed as a worker probes it, on two ranks, and
held against its dry run and arithmetic. It writes ``benchmarks/results/adapter_probes.json``.
"""

import argparse
from statistics import median

from common import Goal, report
from cpu_probes import measure_all
from dry import dry_run_all
from probe_cases import adapter_cases
from probe_table import Probed, closeness, compare

REPETITIONS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="texts of cases")
    options = parser.parse_args()
    wanted = [case for case in adapter_cases() if options.only in case.text]
    runs = measure_all(wanted, REPETITIONS)
    dried = dry_run_all(wanted)
    probed = [
        Probed(case=case, peaks=[max(run["peak_bytes_by_rank"]) for run in done])
        for case in wanted
        if (done := [run for run in runs[case.text] if run["outcome"] == "ok"])
    ]
    rows = [compare(one, dried) for one in probed]
    off = [abs(row["dry_run"]["error"]) for row in rows if row["dry_run"]]
    goals = [
        Goal(name="settings of LoRA and QLoRA measured", goal=">= 24", value=len(rows)),
        *closeness(rows, "adapters on CPU ranks", "dry run", "dry_run"),
        Goal(name="dry run: median error", goal="<= 0.01", value=median(off)),
        Goal(name="dry run: largest error", goal="<= 0.01", value=max(off)),
        *closeness(rows, "adapters on CPU ranks", "arithmetic", "arithmetic")[:1],
    ]
    report("adapter_probes", goals, rows)


if __name__ == "__main__":
    main()
