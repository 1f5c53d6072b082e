"""How few probes the search needs, against its rivals: ``make bench-search``.

Both files of published runs are replayed: a row is revealed only when it is probed, and a failed
run costs a probe. The product's own search is replayed: the prior that the planner makes
(:func:`tuner.planner.prior.prior_among`), asked as it asks (:func:`tuner.search.engine.ask`), from
constants of the cost model that saw nothing of the replayed model (``data/replay_costs.json``, made
by ``make bench-replay-costs``). It writes
``docs/images/search.svg`` and the tables of ``benchmarks/results/search.md`` too.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from os import sched_getaffinity
from typing import Any

import markdown
import numpy as np
import search_page
from ask_speed import LIMIT_S, ask_lines
from common import RESULTS, ROOT, Goal, as_rows, described, show, write
from curves import picture
from plan_speed import plan_lines
from search_lines import Line, curve, every_line, known, lines, mean_curve, not_run, part, table
from search_table import (
    Played,
    differences,
    goals,
    history_worse,
    keep,
    kept_before,
    line,
    percents,
    stability_line,
    workload_lines,
)
from sweep import Run, nanotron_runs, vtrain_runs
from transferred import transfer_lines

RESULT = RESULTS / "search.json"
PICTURE = ROOT / "docs" / "images" / "search.svg"
TABLES = {"sweep": 10, "vTrain": 8}
"""Probes of a replay."""
PLAN_LIMIT_S = 0.2
"""Goal for the median of planning a probe."""
PARTS = 20
"""Random parts of the sweep's tables; vTrain's are too small to be cut."""
SHARE = 0.6
"""Of the candidates of a workload that a part holds."""
PART_PROBES = 8
"""Probes of a replay of a part."""
Job = tuple[str, str, str]
"""A table, a search, a workload."""
Row = dict[str, Any]
"""Of a table of the result."""


def play(job: Job) -> list[float]:
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


def play_all(only: Sequence[str] = ()) -> list[Played]:
    """All searches on both tables, or those that are named."""
    searches = [(name, one) for name in TABLES for one in lines(name) if _is_meant(one, only)]
    return [
        Played(table=name, search=one.name, history=one.history, ours=one.ours, curves=curves)
        for name, one, curves in played(searches, play)
    ]


def _is_meant(one: Line, only: Sequence[str]) -> bool:
    return not only or one.name in only


def stability(only: Sequence[str] = ()) -> list[Row]:
    """Regrets on random parts of the sweep's tables, for the searches that are quick."""
    searches = [("sweep", one) for one in lines("sweep") if one.stable and _is_meant(one, only)]
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


def tables(all_played: Sequence[Played]) -> dict[str, list[Row]]:
    """What is made of regrets, beside the table of searches."""
    own = {name: facts(name) for name in TABLES}
    return {
        "workloads": [
            row for name in TABLES for row in workload_lines(all_played, name, own[name])
        ],
        "differences": [row for name in TABLES for row in differences(all_played, name)],
        "curves": [
            {"table": one.table, "search": one.search,
             "mean": [round(value, 4) for value in one.curves.mean(0).tolist()]}
            for one in all_played
        ],
    }  # fmt: skip


def left_out() -> dict[str, int]:
    """Rows that are left out for their global batch, by table."""
    return {name: sum(of["left_out"] for of in facts(name).values()) for name in TABLES}


def in_order(found: Iterable[Row]) -> list[Row]:
    """Rows of searches in the order of the searches; the last one of each."""
    last = {(row["table"], row["search"]): row for row in found}
    return [last[key] for key in keys() if key in last]


def keys() -> list[tuple[str, str]]:
    """Tables and searches, also of those that cannot be run here."""
    return [(name, one.name) for name in TABLES for one in every_line(name)]


def show_tables(more: dict[str, Any]) -> None:
    """Print what is not printed as goals and rows."""
    sweep = [row for row in more["workloads"] if row["table"] == "sweep"]
    show("every workload of the sweep (vTrain's are in the result file)", percents(sweep))
    show("regret less that of other searches, 95% interval", percents(more["differences"]))
    show(f"mean regret on {PARTS} random {SHARE:.0%} of the rows", percents(more["stability"]))
    show("one ask", more["asks"])
    show("the planner", more["plans"])
    show("step times transferred from the nearest workloads", more["transferred"])
    print("left out, for their global batch is another:", more["left_out"])
    for name, why in more["not_run"].items():
        print(f"not run: {name}: {why}")


def replayed(only: Sequence[str]) -> dict[str, Any]:
    """The result of a replay of all searches, or of some and of what is kept of the others."""
    before = read_result() if only else {}
    start = time.monotonic()
    fresh = play_all(only)
    seconds = time.monotonic() - start
    keep_with(fresh, [] if not only else kept_before())
    return {
        **described("search"),
        "curves": before.get("curves", []),
        "rows": in_order([*before.get("rows", ()), *map(line, kept_before())]),
        "stability": in_order([*before.get("stability", ()), *stability(only)]),
        **{name: before[name] if name in before else make() for name, make in MADE.items()},
        "replays_s": round(seconds, 1),
    }


MADE: Mapping[str, Callable[[], Any]] = {
    "asks": ask_lines,
    "plans": plan_lines,
    "transferred": transfer_lines,
    "left_out": left_out,
    "not_run": not_run,
}
"""What is made once for all searches."""


def keep_with(fresh: Sequence[Played], before: Sequence[Played]) -> None:
    """Keep regrets, of each search the freshest, in the order of the searches."""
    last = {one.key: one for one in [*before, *fresh]}
    keep([last[key] for key in keys() if key in last])


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """A result with all that follows from its rows and from the regrets that are kept."""
    slowest = max(row["cpu_s"] for row in result["asks"])
    planned, *_ = result["plans"]
    judged = [
        *goals(result["rows"], result["stability"], history_worse(kept_before())),
        Goal(name="one ask, 200 measurements, 5,000 legal settings: seconds of a"
             " processor, median", goal=f"<= {LIMIT_S:g}", value=round(slowest, 4)),
        Goal(name=f"next_probe, {planned['probes']} measurements, {planned['settings']:,} legal"
             " settings: seconds, median", goal=f"<= {PLAN_LIMIT_S:g}", value=planned["median_s"]),
    ]  # fmt: skip
    made = tables(kept_before())
    made["curves"] = in_order([*result.get("curves", ()), *made["curves"]])
    return {**result, "goals": as_rows(judged), **made}


def read_result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def record(result: dict[str, Any]) -> None:
    """Write the result, the picture and the page's tables."""
    write(RESULT, json.dumps(result, indent=1) + "\n")
    PICTURE.write_text(picture(result), encoding="utf-8")
    markdown.fill(search_page.PAGE, search_page.SECTIONS, result)
    print(f"written: {RESULT.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="SEARCH", action="append", default=[],
                        help="replay this search only; may be repeated")  # fmt: skip
    parser.add_argument("--again", action="store_true",
                        help="replay nothing: all is made of what is kept")  # fmt: skip
    options = parser.parse_args()
    result = complete(read_result() if options.again else replayed(options.only))
    show_tables(result)
    show("searches", percents(result["rows"]))
    show("goals", result["goals"])
    record(result)


if __name__ == "__main__":
    main()
