import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "predict.json").read_text())
PAGE = (ROOT / "benchmarks" / "results" / "predict.md").read_text(encoding="utf-8")


def test_the_page_shows_every_goal_as_the_result_has_it() -> None:
    for goal in RESULT["goals"]:
        met = "met" if goal["met"] else "**missed**"
        line = f"| {goal['name']} | {goal['goal']} | {goal['value']:.3g} | {met} |"
        assert line in PAGE, goal["name"]


def test_the_page_shows_no_other_goals() -> None:
    shown = PAGE.split("<!-- goals: begin -->")[1].split("<!-- goals: end -->")[0]
    lines = [line for line in shown.splitlines() if line.endswith(("| met |", "**missed** |"))]
    assert len(lines) == len(RESULT["goals"])


def test_the_page_counts_what_was_met() -> None:
    met = sum(goal["met"] for goal in RESULT["goals"])
    assert f"{met} of {len(RESULT['goals'])} met" in PAGE


def test_goals_are_judged_by_their_values() -> None:
    for goal in RESULT["goals"]:
        sign, limit = goal["goal"].split()
        value = goal["value"]
        met = value <= float(limit) if sign == "<=" else value >= float(limit)
        assert goal["met"] is met, goal["name"]


def test_the_page_is_what_the_benchmark_writes_of_the_result(benchmark) -> None:
    assert benchmark("page").filled(PAGE, RESULT) == PAGE


PLANTED = {
    "date": "2026-01-02",
    "device": "cpu, 2 cores",
    "versions": {"torch": "1", "transformers": "2"},
    "goals": [
        {"name": "a", "goal": "<= 1", "value": 0.51234, "met": True},
        {"name": "b", "goal": ">= 1", "value": 0.5, "met": False},
    ],
    "rows": [
        {
            "runs": name,
            "n": 7,
            "memory_first_stage_error": first,
            "memory_worst_stage_error": first,
            "inside_first_stage": first,
            "inside_worst_stage": first,
            "speed_error": 0.25,
            "spearman_pooled": 0.9484,
            "spearman_median": None,
            "inside_speed": 0.8,
            "regret_of_fastest": regret,
        }
        for name, first, regret in (
            ("sweep, held", 0.0495, 0.148),
            ("vTrain", None, 0.0),
            ("workload 1B, 64 GPUs, held", 0.06, 0.487),
            ("workload 8B, 8 GPUs, held", 0.06, 0.05),
        )
    ],
    "dlrover_stated": [
        {"stated": "measured", "by": "", "8 GPUs": 38.668, "largest_error": None},
        {"stated": "nothing", "by": "dry_run", "8 GPUs": None, "largest_error": None},
        {"stated": "nothing", "by": "arithmetic", "8 GPUs": 20.017, "largest_error": 0.4823},
    ],
    "rivals": [
        {"on": "x", "by": "y", "n": 3, "median_error": 0.031, "largest_error": None,
         "verdicts_right": "2 of 3", "balanced_accuracy": 0.75},
        {"on": "x", "by": "z", "n": 3, "median_error": 0.5, "largest_error": 1.0,
         "verdicts_right": "", "balanced_accuracy": None},
    ],
}  # fmt: skip
EMPTY = "".join(
    f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\nkept {name}\n"
    for name in ("goals", "sweep", "stated", "rivals")
)


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-02, cpu, 2 cores, torch 1, transformers 2: 1 of 2 met.",
        "| a | <= 1 | 0.512 | met |",
        "| b | >= 1 | 0.5 | **missed** |",
        "| sweep, held | 7 | 4.95% | 4.95% | 4.95% | 4.95% | 25% | 80% | 0.948 |  | 14.8% |",
        "| vTrain | 7 |  |  |  |  | 25% | 80% | 0.948 |  | 0% |",
        "Of 2 workloads, the run predicted fastest is more than 10% slower than the fastest in 1"
        " (1B, 64 GPUs, held: 48.7%).",
        "| measured |  | 38.7 |  |",
        "| nothing | dry run |  |  |",
        "| nothing | arithmetic | 20.0 | 48.2% |",
        "| x | y | 3 | 3.1% |  | 2 of 3 (balanced accuracy 0.75) |",
        "| x | z | 3 | 50% | 100% |  |",
    ],
)
def test_a_planted_result_is_shown(benchmark, line) -> None:
    assert line in benchmark("page").filled(EMPTY, PLANTED).splitlines()


def test_what_is_between_markers_is_replaced_and_the_rest_is_kept(benchmark) -> None:
    page = benchmark("page")
    once = page.filled(EMPTY, PLANTED)
    assert page.filled(once, PLANTED) == once
    assert "old" not in once
    assert all(f"kept {name}" in once for name in page.SECTIONS)


def test_a_page_without_a_marker_is_refused(benchmark) -> None:
    with pytest.raises(ValueError, match="unpack"):
        benchmark("page").filled(EMPTY.replace("sweep: end", "sweep"), PLANTED)
