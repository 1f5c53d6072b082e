"""How often a predicted lead is a real one: ``make bench-order``, under a minute, by arithmetic.

Every two configurations of one workload of the two published sweeps that ran, and of which the
cost model predicts that one is faster: was it? Nothing was fitted on the workload that is predicted
(``replay_costs.py``). It writes ``benchmarks/results/order.json``; an answer quotes the mean of the
four (``tuner/explain/brief.py``).
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from math import expm1, inf, isnan, log
from statistics import mean
from typing import Any

import markdown
from common import ROOT, Goal, report
from search_lines import ELSEWHERE, FITTED, known, table

# Leads, relative: each row is of those from one of these on, up to the next.
LEADS = (0.0, 0.05, 0.1, 0.2, 0.5)
MEAN = "mean of the four"
CONSTANTS = {
    ("sweep", FITTED): "fitted on its other models",
    ("sweep", ELSEWHERE): "fitted on vTrain's runs",
    ("vTrain", FITTED): "fitted on the sweep",
    ("vTrain", ELSEWHERE): "fitted on nothing",
}


def pairs(name: str, source: str) -> Iterator[tuple[float, bool]]:
    """Of any two runs of a workload: the predicted lead, and whether it was a real one."""
    for workload in table(name).rows:
        case = known(table(name), source, workload)[workload]
        ran = [
            (float(predicted), log(run.step_time_s))
            for predicted, run in zip(case.prior.log_seconds, case.runs, strict=True)
            if run.ok and not isnan(predicted)
        ]
        for (one, seen), (other, seen_other) in combinations(ran, 2):
            if one != other and seen != seen_other:
                yield expm1(abs(other - one)), (other > one) == (seen_other > seen)


def rows() -> list[dict[str, Any]]:
    found = {key: list(pairs(*key)) for key in CONSTANTS}
    told = [
        {"table": name, "constants": said, "lead_from": lead, **_right(found[name, source], lead)}
        for (name, source), said in CONSTANTS.items()
        for lead in LEADS
    ]
    for lead in LEADS:  # the four count alike, however many pairs each has
        right = round(mean(row["right"] for row in told if row["lead_from"] == lead), 3)
        told.append({"table": "all", "constants": MEAN, "lead_from": lead, "right": right})
    return told


def _right(found: Iterable[tuple[float, bool]], lead: float) -> dict[str, Any]:
    most = next((one for one in LEADS if one > lead), inf)
    told = [right for predicted, right in found if lead <= predicted < most]
    return {"right": round(mean(told), 3), "pairs": len(told)}


def main() -> None:
    found = rows()
    name = f"leads of {LEADS[-1]:.0%} or more that are real, mean of the four"
    goal = Goal(name=name, goal=">= 0.9", value=found[-1]["right"])
    markdown.fill(ROOT / "docs" / "prediction.md", {"order": lines}, report("order", [goal], found))


def lines(result: markdown.Row) -> list[str]:
    """The table of the page: a line for each set of constants, a column for each lead."""
    ends = [f"{lead:.0%} to {most:.0%}" for lead, most in pairwise(LEADS)]
    ends.append(f"over {LEADS[-1]:.0%}")
    told: dict[tuple[str, str], list[str]] = {}
    for row in result["rows"]:
        told.setdefault((row["table"], row["constants"]), []).append(f"{row['right']:.0%}")
    cells = ([*key, *shares] for key, shares in told.items())
    return markdown.table(["runs of", "constants", *ends], cells)


if __name__ == "__main__":
    main()
