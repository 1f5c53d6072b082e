import json

import pytest

from workers.measuring.files import write_spec


def test_a_spec_is_written_whole(tmp_path) -> None:
    path = write_spec(tmp_path, {"format": 1})
    assert json.loads(path.read_text()) == {"format": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["spec.json"]


def test_what_is_no_json_is_not_written(tmp_path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_spec(tmp_path, {"loss": float("nan")})
    assert not (tmp_path / "spec.json").exists()
