import json

import pytest


@pytest.fixture
def predict(benchmark):
    return benchmark("predict")


def test_a_bar_joins_the_two_predictions_of_one_measurement(predict) -> None:
    told = [{"measured": 80.0, "value": value} for value in (120.0, 60.0)]
    found = predict._bars(told, lambda row: (row["measured"], row["value"]))
    assert found == [(80.0, 60.0, 120.0)]


def test_rows_out_of_memory_or_not_dry_run_have_no_point(predict) -> None:
    rows = [
        {"measured_gib": 10.0, "dry_run": {"gib": 11.0}},
        {"measured_gib": None, "dry_run": {"gib": 99.0}},
        {"measured_gib": 10.0, "dry_run": None},
    ]
    assert predict._points(rows) == [(10.0, 11.0)]


def test_extrapolations_goals_are_judged_again(predict, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(predict, "RESULTS", tmp_path)
    (missing,), _ = predict.extrapolation()
    assert not missing.met
    goal = {"name": "largest error", "goal": "<= 0.005", "value": 0.5, "met": True}
    kept = {"goals": [goal], "date": "", "commit": "", "versions": {}, "rows": []}
    (tmp_path / "extrapolation.json").write_text(json.dumps(kept))
    (found,), _ = predict.extrapolation()
    assert found.name == "extrapolation: largest error"
    assert not found.met
