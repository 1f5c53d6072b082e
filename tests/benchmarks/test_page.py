import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "predict.json").read_text())
PAGE = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")


def test_the_page_shows_every_goal_as_the_result_has_it():
    for goal in RESULT["goals"]:
        met = "met" if goal["met"] else "**missed**"
        line = f"| {goal['name']} | {goal['goal']} | {goal['value']:.3g} | {met} |"
        assert line in PAGE, goal["name"]


def test_the_page_shows_no_other_goals():
    shown = PAGE.split("<!-- goals: begin -->")[1].split("<!-- goals: end -->")[0]
    lines = [line for line in shown.splitlines() if line.endswith(("| met |", "**missed** |"))]
    assert len(lines) == len(RESULT["goals"])


def test_the_page_counts_what_was_met():
    met = sum(goal["met"] for goal in RESULT["goals"])
    assert f"{met} of {len(RESULT['goals'])} met" in PAGE


def test_goals_are_judged_by_their_values():
    for goal in RESULT["goals"]:
        sign, limit = goal["goal"].split()
        value = goal["value"]
        met = value <= float(limit) if sign == "<=" else value >= float(limit)
        assert goal["met"] is met, goal["name"]
