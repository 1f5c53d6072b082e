"""Models and clusters as programs name them."""

import json
from pathlib import Path

import pytest

from tests.models import TINY
from tuner.client.values import model_note, read_cluster, read_model
from tuner.core.cluster import parse_cluster
from tuner.errors import UsageError


def test_a_model_is_the_same_however_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    found = read_model(path)
    assert found.name == "tiny"
    assert read_model(str(path)) == read_model(found) == found
    assert read_model(TINY).as_config() == found.as_config()
    assert read_model({**TINY, "_name_or_path": "mine"}).name == "mine"
    assert read_model("stories15m").name == "stories15m"


def test_sizes_that_are_left_out_are_told(tmp_path: Path) -> None:
    bare = {"model_type": "llama", "num_hidden_layers": 2}
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(bare))
    assert model_note(path).startswith("bare: not in the model's configuration")
    assert "hidden_size 4096" in model_note(bare)
    for complete in (TINY, "stories15m", read_model(TINY)):
        assert model_note(complete) == ""


def test_a_cluster_is_the_same_however_it_is_given() -> None:
    found = parse_cluster("2x8xh100-80gb")
    assert read_cluster("2x8xh100-80gb") == read_cluster(found) == found
    assert read_cluster(found.as_dict()) == found
    assert read_cluster({"nodes": 2, "gpus_per_node": 8, "gpu": "h100-80gb"}) == found


@pytest.mark.parametrize("value", [8, None, ["8xh100-80gb"]])
def test_what_is_none_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="cluster: got"):
        read_cluster(value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model: got"):
        read_model(value)  # type: ignore[arg-type]
