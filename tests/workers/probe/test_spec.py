"""Spec files are read whole or refused."""

import json
from pathlib import Path

import pytest

from workers.probe.data import micro_batches
from workers.probe.mesh import data_parallel_rank, parallelism
from workers.probe.spec import Knobs, Spec, read_spec


def values(**changes: object) -> dict:
    settings = {
        "sharding": "full_shard", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "micro_batch_size": 2, "gradient_accumulation_steps": 3, "sync_each_batch": True,
        "activation_checkpointing": "none", "cpu_offload": False,
    }  # fmt: skip
    return {
        "format": 1, "model": {"model_type": "llama", "vocab_size": 50}, "settings": settings,
        "sequence_length": 8, "global_batch_size": 24, "optimizer": "adamw", "precision": "fp32",
        "reduce_dtype": "fp32", "world_size": 4, "gpus_per_node": 2, "device": "cpu",
        "memory_limit_bytes": None, "seed": 1, "accumulation_counts": [3], "warmup_steps": 3,
        "tracked_steps": 2, "measured_steps": 10, "minimum_steps": 3, "time_budget_s": 1.0,
        **changes,
    }  # fmt: skip


def write(folder: Path, content: object) -> Path:
    path = folder / "spec.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def spec(**changes: object) -> Spec:
    given = values(**changes)
    return Spec(**{**given, "settings": Knobs(**given["settings"])})


def with_knobs(**knobs: object) -> Spec:
    return spec(settings={**values()["settings"], **knobs})


def test_kernels_of_attention_are_of_two_kinds_of_calls() -> None:
    assert spec().attention_backends == {}
    assert spec(attention_backends={"masked": "math"}).attention_backends == {"masked": "math"}
    with pytest.raises(ValueError, match=r"attention_backends: got \['causal'\]"):
        spec(attention_backends={"causal": "math"})


def test_reads_what_was_written(tmp_path: Path) -> None:
    assert read_spec(write(tmp_path, values())) == spec()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "Expecting value"),
        ("[]", "unknown or missing"),
        (values(surprise=1), "surprise"),
        ({k: v for k, v in values().items() if k != "seed"}, "seed"),
        (values(format=2), "format"),
        (values(accumulation_counts=[]), "accumulation_counts"),
        (values(fidelity="predicted"), "fidelity"),
        (values(give_up_above_s=0.0), "give_up_above_s"),
    ],
)
def test_refuses_another_form(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_spec(write(tmp_path, content))


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
    knobs: dict, replicas: int, shards: int, sharded: bool
) -> None:
    probe = with_knobs(**knobs)
    assert (probe.replicate_size, probe.shard_size, probe.is_sharded) == (replicas, shards, sharded)


def test_every_settings_sees_the_same_global_batch() -> None:
    def rows(probe: Spec) -> list[list[int]]:
        ranks = {data_parallel_rank(probe, rank) for rank in range(probe.world_size)}
        count = probe.accumulation_counts[-1]
        batches = [
            batch
            for data_rank in ranks
            for batch in micro_batches(probe, step=5, count=count, data_rank=data_rank)
        ]
        return sorted(row for batch in batches for row in batch.tolist())

    plain = rows(spec())
    assert len(plain) == 24
    for knobs, counts in (({"micro_batch_size": 1}, [6]), ({"tp_size": 2}, [6])):
        knobs = {**knobs, "gradient_accumulation_steps": counts[0]}
        other = spec(settings={**values()["settings"], **knobs}, accumulation_counts=counts)
        assert rows(other) == plain


def test_steps_differ() -> None:
    first, second = (micro_batches(spec(), step=s, count=3, data_rank=0)[0] for s in (0, 1))
    assert first.tolist() != second.tolist()


def test_a_rank_holds_its_own_tokens_only() -> None:
    for batch in micro_batches(spec(), step=0, count=3, data_rank=1):
        assert batch.untyped_storage().nbytes() == batch.nbytes


def test_a_rank_alone_draws_as_many_tokens_as_among_others() -> None:
    alone, among = (
        micro_batches(spec(fidelity=fidelity), step=0, count=3, data_rank=0)
        for fidelity in ("emulated", "measured")
    )
    assert [batch.shape for batch in alone] == [batch.shape for batch in among]


def test_ddp_beside_tensor_parallelism_is_refused() -> None:
    with pytest.raises(ValueError, match="ddp with tp_size 2 and 2 data-parallel ranks"):
        parallelism(with_knobs(sharding="ddp", tp_size=2))
    assert parallelism(with_knobs(sharding="ddp", tp_size=4)).tp_size == 4
