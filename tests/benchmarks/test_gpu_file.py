import json
from typing import Any

import pytest

from tuner.errors import UsageError

pytestmark = pytest.mark.long


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


def test_another_release_is_refused(opened, tmp_path) -> None:
    opened().add(row("one"))
    path = tmp_path / "h200.json"
    kept = json.loads(path.read_text())
    kept["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(kept))
    with pytest.raises(UsageError, match=r"torch 1\.0, here is"):
        opened()
