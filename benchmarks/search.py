"""How few probes the search needs, against its rivals: ``make bench-search``.

Both files of published runs are replayed: a row is revealed only when it is probed, and a failed
run costs a probe. The product's own search is replayed (:func:`tuner.search.sampler.ask`), from
constants of the cost model that saw nothing of the replayed workload
(``data/replay_costs.json``, made by ``make bench-replay-costs``). It writes
``docs/images/search.svg`` and the tables of ``docs/search.md`` too.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from os import sched_getaffinity
from typing import Any

import numpy as np
import search_page
from ask_speed import LIMIT_S, ask_lines
from common import ROOT, Goal, as_rows, report, show
from curves import picture
from search_lines import Line, curve, known, lines, mean_curve, not_run, part, table
from search_table import (
    Played,
    differences,
    goals,
    line,
    percents,
    stability_line,
    workload_lines,
)
from sweep import Run, nanotron_runs, vtrain_runs

PICTURE = ROOT / "docs" / "images" / "search.svg"
TABLES = {"sweep": 10, "vTrain": 8}
"""Probes of a replay."""
PARTS = 20
"""Random parts of the sweep's tables; vTrain's are too small to be cut."""
SHARE = 0.6
"""Of the candidates of a workload that a part holds."""
PART_PROBES = 8
"""Probes of a replay of a part."""
Job = tuple[str, str, str]
"""A table, a search, a workload."""


def play(job: Job) -> list[float]:
    """Regrets of a search on a workload."""
    name, search, workload = job
    return curve(name, _line(name, search), workload, TABLES[name])


def play_parts(job: Job) -> list[list[float]]:
    """The same on random parts of the workload's table, shape ``(parts, probes)``."""
    name, search, workload = job
    one = _line(name, search)
    case = known(table(name), one.source, workload)[workload]
    return [mean_curve(name, one, part(case, SHARE, seed), PART_PROBES) for seed in range(PARTS)]


def _line(name: str, search: str) -> Line:
    return next(one for one in lines(name) if one.name == search)


def played(
    searches: Sequence[tuple[str, Line]], run: Callable[[Job], Any]
) -> list[tuple[str, Line, Any]]:
    """Each search on all workloads of its table, as an array; on all cores."""
    found = []
    with ProcessPoolExecutor(len(sched_getaffinity(0))) as pool:
        begun = [
            (name, one, pool.map(run, [(name, one.name, w) for w in table(name).rows]))
            for name, one in searches
        ]
        for name, one, curves in begun:
            found.append((name, one, np.array(list(curves))))
            print(f"{name}: {one.name}", file=sys.stderr)
    return found


def play_all() -> list[Played]:
    """All searches on both tables."""
    searches = [(name, one) for name in TABLES for one in lines(name)]
    return [
        Played(table=name, search=one.name, history=one.history, ours=one.ours, curves=curves)
        for name, one, curves in played(searches, play)
    ]


def stability() -> list[dict[str, Any]]:
    """Regrets on random parts of the sweep's tables, for the searches that are quick."""
    searches = [("sweep", one) for one in lines("sweep") if one.stable]
    return [
        stability_line(name, one.name, one.history, np.swapaxes(curves, 0, 1))
        for name, one, curves in played(searches, play_parts)
    ]


def facts(name: str) -> dict[str, dict[str, int]]:
    """Of each workload: rows, those left out for their global batch, candidates, successes."""
    runs = nanotron_runs() if name == "sweep" else vtrain_runs()
    return {workload: _facts(workload, rows, runs) for workload, rows in table(name).rows.items()}


def _facts(workload: str, rows: Sequence[Run], runs: Sequence[Run]) -> dict[str, int]:
    return {
        "rows": len(rows),
        "left_out": sum(run.name == workload for run in runs) - len(rows),
        "candidates": len({run.settings for run in rows}),
        "ok": sum(run.ok for run in rows),
    }


def results(all_played: Sequence[Played], seconds: float) -> dict[str, Any]:
    """What the result file holds beside goals and the table of searches."""
    own = {name: facts(name) for name in TABLES}
    return {
        "workloads": [
            row for name in TABLES for row in workload_lines(all_played, name, own[name])
        ],
        "differences": [row for name in TABLES for row in differences(all_played, name)],
        "stability": stability(),
        "asks": ask_lines(),
        "curves": [
            {"table": one.table, "search": one.search,
             "mean": [round(value, 4) for value in one.curves.mean(0).tolist()]}
            for one in all_played
        ],
        "left_out": {name: sum(of["left_out"] for of in own[name].values()) for name in TABLES},
        "not_run": not_run(),
        "replays_s": round(seconds, 1),
    }  # fmt: skip


def show_tables(more: dict[str, Any]) -> None:
    """Print what is not printed as goals and rows."""
    sweep = [row for row in more["workloads"] if row["table"] == "sweep"]
    show("every workload of the sweep (vTrain's are in the result file)", percents(sweep))
    show("regret less that of other searches, 95% interval", percents(more["differences"]))
    show(f"mean regret on {PARTS} random {SHARE:.0%} of the rows", percents(more["stability"]))
    show("one ask", more["asks"])
    print("left out, for their global batch is another:", more["left_out"])
    for name, why in more["not_run"].items():
        print(f"not run: {name}: {why}")


def main() -> None:
    """Replay, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--not-recorded", action="store_true", help="print only")
    options = parser.parse_args()
    start = time.monotonic()
    all_played = play_all()
    more = results(all_played, time.monotonic() - start)
    show_tables(more)
    slowest = max(row["median_s"] for row in more["asks"])
    asked = [
        *goals(all_played),
        Goal(name="one ask, 200 measurements, 5,000 legal settings: seconds, median",
             goal=f"<= {LIMIT_S:g}", value=round(slowest, 4)),
    ]  # fmt: skip
    rows = [line(one) for one in all_played]
    if options.not_recorded:
        show("searches", percents(rows))
        show("goals", as_rows(asked))
        return
    result = report("search", asked, rows, more)
    PICTURE.write_text(picture(result), encoding="utf-8")
    search_page.write(result)


if __name__ == "__main__":
    main()
