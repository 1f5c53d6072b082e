"""Spec files are read whole or refused; the axes that follow from them."""

import json

import pytest

from tests.process.probe.specs import spec as spec_of
from workers.probe.spec import parse_spec, read_spec

LLAMA = {"model_type": "llama", "vocab_size": 50}
VALUES = spec_of(LLAMA, 4, sharding="full_shard", gradient_accumulation_steps=3)
SETTINGS = VALUES["settings"]


def with_knobs(**knobs):
    return parse_spec({**VALUES, "settings": {**SETTINGS, **knobs}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "spec.json: Expecting value"),
        ("[]", "unknown or missing"),
        ({"surprise": 1}, "surprise"),
        ({"seed": ...}, "seed"),
        ({"format": 2}, "format"),
        ({"accumulation_counts": []}, "accumulation_counts"),
        ({"fidelity": "predicted"}, "fidelity"),
        ({"give_up_above_s": 0.0}, "give_up_above_s"),
        ({"attention_backends": {"causal": "math"}}, r"attention_backends: got \['causal'\]"),
        ({"settings": {**SETTINGS, "pp_size": 2}}, "pp_size"),
    ],
)
def test_refuses_another_form(tmp_path, content, message):
    path = tmp_path / "spec.json"
    if isinstance(content, dict):
        values = {k: v for k, v in {**VALUES, **content}.items() if v is not ...}
        content = json.dumps(values)
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_spec(path)


@pytest.mark.parametrize(
    ("knobs", "replicas", "shards", "sharded"),
    [
        ({"sharding": "ddp"}, 1, 1, False),
        ({"sharding": "full_shard"}, 1, 4, True),
        ({"sharding": "hybrid_shard"}, 2, 2, True),
        ({"sharding": "full_shard", "tp_size": 2}, 1, 2, True),
        ({"sharding": "full_shard", "tp_size": 4}, 1, 1, False),
    ],
)
def test_axes_of_four_ranks_on_two_nodes(knobs, replicas, shards, sharded):
    spec = with_knobs(**knobs)
    assert (spec.replicate_size, spec.shard_size, spec.is_sharded) == (replicas, shards, sharded)


def test_tensor_parallelism_is_the_innermost_axis():
    assert [with_knobs(tp_size=2).data_parallel_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
