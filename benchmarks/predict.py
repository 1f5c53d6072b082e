"""How good predictions are, and how fast: ``make bench-predict``.

Everything is predicted anew, with dry runs of its own; measured is what was published
(``data/*.csv``), and what ``make bench-cpu-probes`` has measured on CPU ranks. The check of
extrapolated against full-depth dry runs takes an hour and is shown as it was run last
(``make bench-extrapolation``). It writes ``docs/images/prediction.svg`` and the
tables of ``benchmarks/results/predict.md`` too.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import markdown
import page
import probe_table
import published_times
import speed
import sweep_table
from common import RESULTS, ROOT, Goal, report, show
from dry import Dried, dry_run_all
from plot import BLUE, GREEN, ORANGE, PURPLE, YELLOW, Panel, Series, svg
from probe_cases import Case
from public_goals import dlrover_goals, interval_goals, issue_goals, torchtitan_goals
from public_rows import (
    PublicRow,
    dlrover_rows,
    issue_rows,
    judge,
    judge_stated,
    stated_lines,
    torchtitan_lines,
    torchtitan_rows,
)
from rival_table import of_probes, of_public, of_sweep, table
from sweep import nanotron_runs, vtrain_runs
from sweep_table import Pair, pick, predicted

PICTURE = ROOT / "docs" / "images" / "prediction.svg"
MB_GIB = 1e6 / 2**30

Told = Sequence[Mapping[str, Any]]


def extrapolation() -> tuple[list[Goal], dict[str, Any]]:
    """Goals of ``extrapolation.py`` as it was run last, and its results."""
    path = RESULTS / "extrapolation.json"
    if not path.exists():
        return [Goal(name="extrapolation: runs of its benchmark", goal=">= 1", value=0)], {}
    found = json.loads(path.read_text())
    kept = [
        Goal(name=f"extrapolation: {goal['name']}", goal=goal["goal"], value=goal["value"])
        for goal in found["goals"]
    ]
    return kept, {key: found[key] for key in ("date", "commit", "versions", "rows")}


def picture(found: "Predicted") -> str:
    held = pick(found.sweep, lambda run: run.ok and not run.fitted_on)
    speeds = [(run, (run.tokens_per_s, p.tokens_per_s_per_gpu.value or 0.0)) for run, p in held]
    few = [point for run, point in speeds if sweep_table.small(run)]
    many = [point for run, point in speeds if not sweep_table.small(run)]
    memory = [(r.memory_gib, sweep_table.printed_gib(r)) for r, _ in held if r.memory_gib]
    probes = [(row["measured_mb"] * MB_GIB, row["dry_run"]["mb"] * MB_GIB)
              for row in found.probes if row["dry_run"]]  # fmt: skip
    titan = found.told["torchtitan"]
    selective = "torchtitan, selective checkpointing, arithmetic"
    panels = [
        Panel(title="Memory of one GPU or CPU rank", unit="GiB", series=[
            Series(name="nanotron sweep, held half", color=BLUE, points=memory, radius=2.4),
            Series(name="CPU probes, dry run", color=GREEN, points=probes),
            Series(name="transformers issue 29425, dry run", color=ORANGE,
                   points=_points(found.told["issue_29425"]), radius=4.5),
            Series(name="DLRover, dry run", color=PURPLE,
                   points=_points(found.told["dlrover"]), radius=4.5),
            Series(name=selective, color=YELLOW, points=[_gib(row) for row in titan], radius=4.5),
        ]),
        Panel(title="Speed of one GPU", unit="tokens/s", series=[
            Series(name="nanotron sweep, held half, more than 64 GPUs", color=ORANGE,
                   points=many, radius=2.4),
            Series(name="nanotron sweep, held half, 64 GPUs or fewer", color=BLUE,
                   points=few, radius=2.4),
            Series(name=selective, color=YELLOW, points=[_rate(row) for row in titan], radius=4.5),
        ]),
    ]  # fmt: skip
    return svg(panels)


def _points(told: Told) -> list[tuple[float, float]]:
    return [(row["measured_gib"], row["dry_run"]["gib"])
            for row in told if row["dry_run"] and row["measured_gib"]]  # fmt: skip


def _gib(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["measured_gib"], row["arithmetic"]["gib"]


def _rate(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["tokens_per_s"], row["predicted_tokens_per_s"]["value"]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Everything that was predicted, beside what was measured."""

    public: Mapping[str, Sequence[PublicRow]]  # published rows by source
    told: Mapping[str, Told]  # what is predicted for each of them
    stated: Told  # the same for DLRover's rows with fewer and more facts of its script stated
    cases: Sequence[Case]  # what was probed on CPU ranks
    probes: Told  # what is predicted for each of them
    sweep: Sequence[Pair]  # nanotron's runs, failed ones too
    dried: Dried  # the dry runs behind it

    @property
    def ran(self) -> list[Pair]:
        """The sweep's runs that succeeded."""
        return pick(self.sweep, lambda run: run.ok)


def predict_all(data: Mapping[str, Any], kept: Path | None = None) -> Predicted:
    """Predict every row; ``data`` are the CPU probes, ``kept`` dry runs not to make again."""
    public = {
        "issue_29425": issue_rows(),
        "dlrover": dlrover_rows(),
        "torchtitan": torchtitan_rows(),
    }
    probed = probe_table.probed(data)
    cases = [one.case for one in probed]
    dried = dry_run_all([*(row for rows in public.values() for row in rows), *cases], kept)
    print(f"{dried.requests} dry runs in {dried.seconds:.0f} s", file=sys.stderr)
    return Predicted(
        public=public,
        told={name: [judge(row, dried) for row in rows] for name, rows in public.items()},
        stated=judge_stated(dried),
        cases=cases,
        probes=[probe_table.compare(one, dried) for one in probed],
        sweep=predicted(nanotron_runs()),
        dried=dried,
    )


def rivals(found: Predicted) -> list[dict[str, Any]]:
    few = pick(found.sweep, lambda run: sweep_table.small(run) and not run.fitted_on)
    lines = [
        line
        for name, rows in found.public.items()
        for line in table(name, of_public(rows, found.told[name]))
    ]
    lines += table("CPU probes", of_probes(found.cases, found.probes))
    return lines + table("sweep, held, <= 64 GPUs", of_sweep(few))


def goals(found: Predicted, speeds: Told) -> list[Goal]:
    told = found.told
    return [
        *issue_goals(told["issue_29425"]),
        *dlrover_goals(told["dlrover"], found.stated),
        *torchtitan_goals(told["torchtitan"]),
        *probe_table.goals(found.probes),
        *extrapolation()[0],
        *sweep_table.goals(found.sweep),
        *interval_goals([*told["issue_29425"], *told["dlrover"]]),
        *(speed.goals(speeds) if speeds else []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-speed", action="store_true", help="leave the timing out")
    parser.add_argument("--dry-runs", type=Path, help="a file of dry runs to use and add to")
    options = parser.parse_args()
    data = probe_table.load()
    found = predict_all(data, options.dry_runs)
    speeds = [] if options.without_speed else speed.lines()
    more = results(found, data, speeds)
    show_tables(more)
    if options.dry_runs or options.without_speed:  # not all of it, or not anew
        told = [{**asdict(goal), "met": goal.met} for goal in goals(found, speeds)]
        show("goals, not recorded", told)
        return
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(found))
    markdown.fill(
        page.PAGE, page.SECTIONS, report("predict", goals(found, speeds), lines(found), more)
    )


def results(found: Predicted, data: Mapping[str, Any], speeds: Told) -> dict[str, Any]:
    """What the result file holds beside goals and the sweep's table."""
    siblings = sweep_table.conflicting(found.ran)
    return {
        **found.told,
        "dlrover_stated": stated_lines(found.stated),
        "cpu_probes": found.probes,
        "cpu_probes_measured": {k: data[k] for k in ("date", "commit", "versions", "device")},
        "extrapolation": extrapolation()[1],
        "rivals": rivals(found),
        "published_times": published_times.rows(),
        "speed": speeds,
        "conflicting_siblings": [sweep_table.sibling(*pair) for pair in siblings],
        "dry_runs": {"count": found.dried.requests, "seconds": found.dried.seconds},
    }


def show_tables(more: Mapping[str, Any]) -> None:
    """Print what is not printed as goals and rows."""
    siblings = len(more["conflicting_siblings"])
    print(f"{siblings} pairs of conflicting siblings (listed in the result file)")
    show("other tools on the same rows", more["rivals"])
    show("torchtitan, selective checkpointing", torchtitan_lines(more["torchtitan"]))
    show("DLRover, by what is stated of its script", more["dlrover_stated"])
    show("speed against published figures", more["published_times"])
    if more["speed"]:
        kinds = ("what", "seconds", "dry_runs")
        show("speed", [{kind: line.get(kind) for kind in kinds} for line in more["speed"]])


def lines(found: Predicted) -> list[dict[str, Any]]:
    """The table of many runs: the sweep, and vTrain's."""
    runs = [run for run in vtrain_runs() if not run.fitted_on]
    vtrain = sweep_table.line("vTrain, A100, no constant fitted, held", predicted(runs))
    return [*sweep_table.lines(found.ran), vtrain]


if __name__ == "__main__":
    main()
