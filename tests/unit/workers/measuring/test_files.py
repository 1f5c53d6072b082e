import json

import pytest

from tuner.core.measurement import Measurement, Outcome
from workers.measuring.files import RESULT, log_path, record_path, write_json, write_spec


def test_names(tmp_path) -> None:
    assert record_path(tmp_path, 3).name == "rank-00003.json"
    assert log_path(tmp_path, 12).name == "rank-00012.log"


def test_a_spec_is_written_whole(tmp_path) -> None:
    path = write_spec(tmp_path, {"format": 1})
    assert json.loads(path.read_text()) == {"format": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["spec.json"]


def test_a_result_is_written_with_all_that_was_measured(tmp_path) -> None:
    measurement = Measurement(outcome=Outcome.TIMEOUT, detail="slow", log_tails={1: "x"})
    path = write_json(tmp_path / RESULT, measurement.as_dict())
    assert Measurement.from_dict(json.loads(path.read_text())) == measurement


def test_what_is_no_json_is_not_written(tmp_path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_spec(tmp_path, {"loss": float("nan")})
    assert not (tmp_path / "spec.json").exists()
