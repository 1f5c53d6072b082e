"""Spec files are read whole or refused; the axes that follow from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.probe.spec import Spec, parse_spec, read_spec

SETTINGS = {
    "sharding": "full_shard", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
    "micro_batch_size": 2, "gradient_accumulation_steps": 3, "sync_each_batch": True,
    "activation_checkpointing": "none", "cpu_offload": False,
}  # fmt: skip
VALUES = {
    "format": 1, "model": {"model_type": "llama", "vocab_size": 50}, "settings": SETTINGS,
    "sequence_length": 8, "global_batch_size": 24, "optimizer": "adamw", "precision": "fp32",
    "reduce_dtype": "fp32", "world_size": 4, "gpus_per_node": 2, "device": "cpu",
    "memory_limit_bytes": None, "seed": 1, "accumulation_counts": [3], "warmup_steps": 3,
    "tracked_steps": 2, "measured_steps": 10, "minimum_steps": 3, "time_budget_s": 1.0,
}  # fmt: skip


def with_knobs(**knobs: object) -> Spec:
    return parse_spec({**VALUES, "settings": {**SETTINGS, **knobs}})


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**VALUES, "attention_backends": {"masked": "math"}}))
    spec = read_spec(path)
    assert (spec.settings.sharding, spec.sequence_length, spec.fidelity) == (
        "full_shard", 8, "measured",
    )  # fmt: skip
    assert spec.attention_backends == {"masked": "math"}
    assert parse_spec(VALUES).attention_backends == {}


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
def test_refuses_another_form(tmp_path: Path, content: Any, message: str) -> None:
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
def test_axes_of_four_ranks_on_two_nodes(
    knobs: dict[str, Any], replicas: int, shards: int, sharded: bool
) -> None:
    spec = with_knobs(**knobs)
    assert (spec.replicate_size, spec.shard_size, spec.is_sharded) == (replicas, shards, sharded)


def test_tensor_parallelism_is_the_innermost_axis() -> None:
    assert [with_knobs(tp_size=2).data_parallel_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
