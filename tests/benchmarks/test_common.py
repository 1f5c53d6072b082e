import json

import pytest


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        ("<= 0.06", 0.06, True),
        ("<= 0.06", 0.0601, False),
        (">= 0.8", 0.8, True),
        (">= 0.8", 0.79, False),
        ("<= 1", float("inf"), False),
        ("<= 1", float("nan"), False),
        (">= 1", float("nan"), False),
    ],
)
def test_a_goal_is_met_up_to_its_limit(benchmark, goal, value, met) -> None:
    assert benchmark("common").Goal(name="x", goal=goal, value=value).met is met


def test_parts_are_run_in_order_and_reported(benchmark, monkeypatch, tmp_path) -> None:
    common = benchmark("common")
    for name, seen in (("part_one", 1), ("part_two", 3)):
        (tmp_path / f"{name}.py").write_text(
            "from common import Goal\n\n\n"
            f"def rows():\n    return [{{'seen': {seen}}}]\n\n\n"
            "def goals(rows):\n"
            f"    return [Goal(name='{name}', goal='<= 2', value=rows[0]['seen'])]\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    written = common.report_parts("both", {"one": "part_one", "two": "part_two"})
    assert json.loads((tmp_path / "results" / "both.json").read_text()) == written
    assert (written["rows"], written["two"]) == ([{"seen": 1}], [{"seen": 3}])
    assert [(goal["name"], goal["met"]) for goal in written["goals"]] == [
        ("part_one", True),
        ("part_two", False),
    ]
