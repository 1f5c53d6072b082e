import json
from typing import Any

import pytest

from tuner.errors import UsageError


def row(key: str, **other: Any) -> dict[str, Any]:
    return {"key": key, "part": "grid", "model": "a", "outcome": "ok", "case_s": 10.0, **other}


@pytest.fixture
def opened(benchmark, tmp_path):
    module = benchmark("gpu.file")
    return lambda device="NVIDIA H200": module.ResultFile(tmp_path / "h200.json", "h200", device)


def test_rows_are_there_again_when_it_is_opened_again(opened, tmp_path) -> None:
    opened().add(row("one"))
    again = opened()
    again.add(row("two"))
    assert again.done == {"one", "two"}
    kept = json.loads((tmp_path / "h200.json").read_text())
    assert [one["key"] for one in kept["rows"]] == ["one", "two"]
    assert {"name", "date", "commit", "versions", "device", "goals"} <= kept.keys()


def test_it_is_whole_without_rows_too(opened, tmp_path) -> None:
    opened().write()
    assert json.loads((tmp_path / "h200.json").read_text())["rows"] == []


@pytest.mark.parametrize("outcome", ["not_run", "device_lost"])
def test_what_could_not_be_run_is_tried_again_and_replaced(opened, outcome: str) -> None:
    file = opened()
    file.add(row("one", outcome=outcome))
    assert file.done == frozenset()
    file.add(row("one"))
    assert [one["outcome"] for one in file.rows] == ["ok"]


def test_a_failed_write_leaves_the_rows_that_were_there(opened, tmp_path) -> None:
    file = opened()
    file.add(row("one"))
    with pytest.raises(TypeError):
        file.add(row("two", detail=object()))
    assert opened().done == {"one"}


def test_another_card_is_refused(opened) -> None:
    opened().add(row("one"))
    with pytest.raises(UsageError, match="NVIDIA H200, here is NVIDIA L4"):
        opened("NVIDIA L4")


def test_another_release_is_refused(opened, tmp_path) -> None:
    opened().add(row("one"))
    path = tmp_path / "h200.json"
    kept = json.loads(path.read_text())
    kept["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(kept))
    with pytest.raises(UsageError, match=r"torch 1\.0, here is"):
        opened()


@pytest.mark.parametrize("text", ['{"rows": [', "{}", '{"name": "predict", "rows": []}'])
def test_another_file_is_refused(opened, tmp_path, text) -> None:
    (tmp_path / "h200.json").write_text(text)
    with pytest.raises(UsageError, match="is no result of this"):
        opened()


def test_what_a_case_takes_is_judged_by_the_nearest_before_it(opened) -> None:
    file = opened()
    assert file.expected_s("grid", "a") == 0.0
    file.add(row("one", model="b", case_s=50.0))
    assert file.expected_s("grid", "a") == 50.0  # of another model
    file.add(row("two", part="recompute", case_s=20.0))
    assert file.expected_s("grid", "a") == 20.0  # of its model in another part
    file.add(row("three", case_s=5.0))
    file.add(row("four", case_s=7.0))
    assert file.expected_s("grid", "a") == 7.0  # the slowest of both
    file.add(row("five", case_s=0.1, outcome="not_run", part="memory"))
    assert file.expected_s("seed", "a") == 20.0


def test_rates_are_there_again_when_it_is_opened_again(opened) -> None:
    file = opened()
    file.add(row("one"))
    file.keep_rates({"flops_per_s": 1e12})
    assert opened().rates == {"flops_per_s": 1e12}
    assert opened().done == {"one"}
