"""Step times by arithmetic against published runs: ``make bench-times``, a minute.

llm-foundry's runs of FSDP on A100 at eight lengths of sequences, nanotron's sweep on H100, vTrain's
runs on A100. It writes ``benchmarks/results/times.json``, whose rows are
llm-foundry's, tokens/s as predicted over measured ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import foundry
import published_times
from common import Goal, report, show
from sweep import nanotron_runs, vtrain_runs
from sweep_table import line, pick, predicted, small

# Median errors before torch had times of its own; nothing may be worse by more than a tenth.
BEFORE = {"sweep, <= 64 GPUs, held": 0.0425, "sweep, > 64 GPUs, held": 0.189, "vTrain, held": 0.202}
SPEEDS = ("runs", "n", "speed_error", "spearman_pooled", "inside_speed", "speed_interval_width")


def others() -> list[dict[str, Any]]:
    """Speeds of the halves of nanotron's sweep and of vTrain that nothing was fitted on."""
    ran = predicted(run for run in nanotron_runs() if run.ok and not run.fitted_on)
    vtrain = predicted(run for run in vtrain_runs() if not run.fitted_on)
    few, many = pick(ran, small), pick(ran, lambda run: not small(run))
    found = [line(name, pairs) for name, pairs in zip(BEFORE, (few, many, vtrain), strict=True)]
    return [{name: one[name] for name in SPEEDS} for one in found]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for row in rows:
        name, limit = row["runs"], f"<= {1.1 * BEFORE[row['runs']]:.3g}"
        inside = row["inside_speed"]
        found += [
            Goal(name=f"{name}: tokens/s, median error", goal=limit, value=row["speed_error"]),
            Goal(name=f"{name}: tokens/s inside intervals, at least", goal=">= 0.75", value=inside),
            Goal(name=f"{name}: tokens/s inside intervals, at most", goal="<= 0.92", value=inside),
        ]
    return found


def main() -> None:
    told = foundry.told()
    lines, rest, single = foundry.lines(told), others(), published_times.rows()
    show("nanotron's sweep and vTrain, what nothing was fitted on", rest)
    show("step times against published figures", single)
    fits = foundry.fit_lines()
    show("llm-foundry's runs that are said to fit; all of them ran", fits)
    more = {"others": rest, "published_times": single, "fits": fits}
    asked = [*foundry.goals(told), *goals(rest), *foundry.fit_goals(fits)]
    report("times", asked, lines, more)


if __name__ == "__main__":
    main()
