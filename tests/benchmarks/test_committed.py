"""What is committed of the benchmarks: results with their goals, and the pages made of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.core.quantity import Provenance, Quantity
from tuner.explain.brief import REAL_LEADS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def result(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


@pytest.mark.slow
def test_every_module_is_imported(benchmark):
    folder = ROOT / "benchmarks"
    for path in sorted([*folder.glob("*.py"), *folder.glob("gpu/*.py")]):
        if path.name not in ("__init__.py", "rivals.py"):
            benchmark(".".join(path.relative_to(folder).with_suffix("").parts))


def test_every_result_says_when_where_and_what_was_asked_of_it(benchmark):
    judge = benchmark("common").Goal
    for path in RESULTS:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["name"] == path.stem
        assert all(found[key] for key in ("date", "commit", "versions", "device", "rows")), path
        assert found["goals"], path
        for goal in found["goals"]:
            again = judge(name=goal["name"], goal=goal["goal"], value=goal["value"])
            assert goal["met"] is again.met, goal["name"]


def test_an_answer_quotes_the_share_of_leads_that_were_real():
    rows = [row for row in result("order")["rows"] if row["table"] == "all"]
    assert {row["lead_from"]: round(row["right"], 2) for row in rows} == REAL_LEADS


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        ("<= 0.06", 0.06, True),
        ("<= 0.06", 0.0601, False),
        (">= 0.8", 0.8, True),
        (">= 0.8", 0.79, False),
        ("<= 1", float("inf"), False),
        (">= 1", float("nan"), False),
    ],
)
def test_a_goal_is_met_up_to_its_limit(benchmark, goal, value, met):
    assert benchmark("common").Goal(name="x", goal=goal, value=value).met is met


def test_a_table_has_a_column_for_each_key_of_any_row(benchmark, capsys):
    benchmark("common").show(
        "views", [{"view": "first", "ms": 7.5}, {"view": "list", "studies": 3}]
    )
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "  view   ms   studies",
        "  -----  ---  -------",
        "  first  7.5",
    ]


@pytest.mark.slow
def test_the_catalogue_of_tasks_is_that_of_the_release(benchmark):
    written = (ROOT / "tuner" / "catalog" / "task_types.toml").read_text()
    assert benchmark("any_model").catalogue() + "\n" == written, "any_model.py --list writes it"


def test_judging(benchmark):
    judging = benchmark("judging")
    # By the formula without ties: 1 - 6 * (1 + 1) / (4 * 15).
    assert judging.spearman([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(0.8)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    tied = judging.spearman([(1, 1), (2, 2), (2, 3), (3, 4)])
    assert tied == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert judging.spearman([(1, 1), (1, 2), (1, 3)]) == 0
    told = [(True, True)] * 3 + [(False, True)] + [(False, False)] + [(True, False)]
    assert judging.balanced(told) == pytest.approx((3 / 4 + 1 / 2) / 2)
    interval = Quantity(value=2, low=1, high=3, provenance=Provenance.PREDICTED)
    assert [judging.holds(interval, value) for value in (0.9, 1, 3, 3.1)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert judging.share([]) == 0


def test_speeds_hold_at_every_length_of_sequences(benchmark):
    """Of llm-foundry's models that nothing was fitted on; not so if attention were a product."""
    foundry = benchmark("foundry")
    told = foundry.told()
    assert {row.model for row, _ in told if row.fitted_on} == set(foundry.FITTED)
    assert [goal.name for goal in foundry.goals(told) if not goal.met] == []
    slow = [(replace(row, tokens_per_s=row.tokens_per_s / 1.3), found) for row, found in told]
    assert len([goal for goal in foundry.goals(slow) if not goal.met]) > 8


def test_evidence_is_made_of_the_results(benchmark):
    report = benchmark("report")
    found = report.results()
    text = report.PAGE.read_text(encoding="utf-8")
    assert report.rendered(text, found) == text, "make evidence"
    for name, picture in report.pictures(found).items():
        assert (report.PAGE.parent / name).read_text(encoding="utf-8") == picture, name


def test_the_page_of_predictions_is_made_of_its_result(benchmark):
    text = (ROOT / "benchmarks" / "results" / "predict.md").read_text(encoding="utf-8")
    assert (
        benchmark("markdown").filled(text, benchmark("page").SECTIONS, result("predict")) == text
    ), "make bench-predict"


def test_the_page_of_the_search_is_made_of_its_result(benchmark):
    page, found = benchmark("search_page"), result("search")
    text = page.PAGE.read_text(encoding="utf-8")
    assert benchmark("markdown").filled(text, page.SECTIONS, found) == text, "make bench-search"
    picture = (ROOT / "docs" / "images" / "search.svg").read_text(encoding="utf-8")
    assert benchmark("curves").picture(found) == picture, "make bench-search"


def test_the_page_of_knobs_is_made_of_its_result(benchmark):
    knobs, found = benchmark("knobs"), result("knobs")
    for name, text in knobs.pictures(found).items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == text, name
    page = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert benchmark("knob_tables").filled(page, found) == page, "make docs"


@pytest.mark.parametrize("left_out", ["", "1B", "8B"])
def test_constants_that_are_kept_fit_those_of_today(benchmark, left_out):
    """Both sources of what nodes do, with both of what is sent between them."""
    found = benchmark("replay_costs").experts(left_out)

    assert len({one.time for one in found}) == 4
