"""The page of the search's benchmark says what its result file holds."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "search.json").read_text())
PAGE = (ROOT / "benchmarks" / "results" / "search.md").read_text(encoding="utf-8")


@pytest.fixture
def page(benchmark):
    return benchmark("search_page")


def test_the_committed_page_is_made_of_the_committed_result(page) -> None:
    for path, sections in page.PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert page.filled(text, RESULT, sections) == text, "run make bench-search"


def test_rows_are_those_of_the_regrets_that_are_kept(benchmark) -> None:
    kept = benchmark("search_played").kept_before()
    assert {one.search for one in kept} >= set(benchmark("search_lines").KEPT.values())
    rows = {(row["table"], row["search"]): row for row in RESULT["rows"]}
    for one in kept:
        found = benchmark("search_table").line(one)
        assert found == pytest.approx(rows[one.key], abs=2e-4), one.key


def test_the_committed_picture_is_too(benchmark) -> None:
    picture = (ROOT / "docs" / "images" / "search.svg").read_text(encoding="utf-8")
    assert benchmark("curves").picture(RESULT) == picture, "run make bench-search"


def test_every_goal_is_shown_and_judged_by_its_value() -> None:
    assert len(RESULT["goals"]) == 16 + 2 + 2
    for goal in RESULT["goals"]:
        assert goal["met"] is (goal["value"] <= float(goal["goal"].split()[1])), goal["name"]
        met = "met" if goal["met"] else "**missed**"
        assert f"| {goal['name']} | {goal['goal']} | {goal['value']:.3g} | {met} |" in PAGE


def test_goals_are_what_the_table_of_searches_says(benchmark) -> None:
    kept = benchmark("search_lines").KEPT
    rows = {(row["table"], row["search"]): row for row in RESULT["rows"]}
    goals = {goal["name"]: goal["value"] for goal in RESULT["goals"]}
    for history, knows in ((False, "no history"), (True, "history")):
        for probes in (1, 3, 5, 8):
            count = f"{probes} probe{'s' if probes > 1 else ''}"
            for statistic in ("mean", "median"):
                value = rows["sweep", kept[history]][f"{statistic}@{probes}"]
                assert goals[f"sweep, {knows}, {count}: {statistic} regret"] == value


def test_the_means_are_those_of_the_workloads_own_lines() -> None:
    own = [row for row in RESULT["workloads"] if row["table"] == "sweep"]
    assert len(own) == 14
    goals = {goal["name"]: goal["value"] for goal in RESULT["goals"]}
    mean = sum(row["history@3"] for row in own) / len(own)
    assert goals["sweep, history, 3 probes: mean regret"] == pytest.approx(mean, abs=2e-4)


def test_all_rivals_are_in_the_table() -> None:
    for name in ("sweep", "vTrain"):
        found = {row["search"] for row in RESULT["rows"] if row["table"] == name}
        assert found >= {
            "random", "grid", "largest micro-batch first", "least model parallelism first",
            "Optuna TPE", "Optuna GP", "DeepSpeed grid", "DeepSpeed random",
            "DeepSpeed model-based",
        }  # fmt: skip


def test_a_page_without_a_marker_is_refused(page) -> None:
    with pytest.raises(ValueError, match="unpack"):
        page.filled(PAGE.replace("asks: end", "asks"), RESULT, page.PAGES[page.PAGE])


def test_what_was_not_run_is_said(page) -> None:
    lines = page.searches({**RESULT, "not_run": {"X": "y is not installed"}})
    assert "Not run: X, for y is not installed." in lines
