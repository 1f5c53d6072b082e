from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.cluster import parse_cluster
from tuner.cost.memory import MemoryBound, memory_bound
from tuner.model import ModelConfig, read_model_config
from tuner.settings import Settings, Sharding, parse_settings
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload

GIB = 2**30

CODELLAMA_34B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}
MIXTRAL_OF_4_LAYERS = {"model_type": "mixtral", "num_hidden_layers": 4}


def model(config: dict[str, object]) -> ModelConfig:
    return read_model_config(config, name="model")


def bound(
    text: str,
    cluster: str = "8xa100-80gb",
    config: dict[str, object] = CODELLAMA_34B,
    **workload: object,
) -> MemoryBound:
    fields = {"sequence_length": 4096, "global_batch_size": 64, **workload}
    return memory_bound(
        Workload(model=model(config), **fields), parse_settings(text), parse_cluster(cluster)
    )


# Peaks of dry runs of rank 0, which count every storage: bf16, full activation checkpointing.


def test_a_whole_step_of_34b_parameters() -> None:
    sync = "sharding=full_shard,activation_checkpointing=full,gradient_accumulation_steps=2"
    assert bound(sync).total_bytes / GIB == pytest.approx(42.31, rel=0.03)
    assert bound(sync, sequence_length=1024).total_bytes / GIB == pytest.approx(39.3, rel=0.03)
    no_sync = bound(f"{sync},sync_each_batch=false", sequence_length=1024)
    assert no_sync.total_bytes / GIB == pytest.approx(92.0, rel=0.05)
    assert no_sync.floor_bytes / GIB < 92.0


@pytest.mark.parametrize(("nodes", "peak_gib"), [(1, 16.6), (2, 24.4), (8, 71.5), (64, 513)])
def test_packed_experts_are_padded_where_ranks_outnumber_them(nodes: int, peak_gib: float) -> None:
    text = "sharding=full_shard,activation_checkpointing=full"
    found = bound(text, f"{nodes}x8xh100-80gb", MIXTRAL_OF_4_LAYERS)
    assert found.total_bytes / GIB == pytest.approx(peak_gib, rel=0.05)
    assert found.floor_bytes / GIB < peak_gib


def test_what_each_sharding_splits() -> None:
    parameters = model(CODELLAMA_34B).parameters
    ddp, full = bound("sharding=ddp"), bound("sharding=full_shard")
    assert ddp.parameters_bytes == ddp.gradients_bytes == 2 * parameters
    assert ddp.optimizer_bytes == 4 * parameters
    assert full.parameters_bytes == pytest.approx(2 * parameters / 8, abs=8)
    assert full.optimizer_bytes == pytest.approx(4 * parameters / 8, abs=8)
    zero2 = bound("sharding=shard_grad_op")
    assert zero2.floor_bytes == pytest.approx(full.floor_bytes + 2 * parameters * 7 / 8, abs=16)
    hybrid = bound("sharding=hybrid_shard", "2x4xa100-80gb")
    assert hybrid.parameters_bytes == pytest.approx(2 * parameters / 4, abs=8)
    zero1 = bound("sharding=zero1")
    assert zero1.parameters_bytes == ddp.parameters_bytes
    assert zero1.optimizer_bytes == pytest.approx(ddp.optimizer_bytes / 8, abs=8)


def test_gradients_that_wait_are_whole_and_in_the_reduction_format() -> None:
    parameters = model(CODELLAMA_34B).parameters
    text = "sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false"
    assert bound(text).gradients_bytes == 2 * parameters
    assert bound(text, reduce_dtype=ReduceDtype.FP32).gradients_bytes == 4 * parameters
    mixed = bound(text, precision=Precision.BF16_MIXED)
    assert mixed.gradients_bytes == 2 * parameters
    assert mixed.parameters_bytes == pytest.approx(4 * parameters / 8, abs=8)
    assert bound(text.replace("steps=2", "steps=1")).gradients_bytes < parameters


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [(Optimizer.ADAMW, 4), (Optimizer.ADAMW_8BIT, 2), (Optimizer.SGD, 0)],
)
def test_optimizer_state(optimizer: Optimizer, bytes_each: int) -> None:
    found = bound("sharding=ddp", optimizer=optimizer)
    assert found.optimizer_bytes == bytes_each * model(CODELLAMA_34B).parameters


def test_offload_leaves_what_is_gathered_on_the_device() -> None:
    found = bound("sharding=full_shard,cpu_offload=true")
    assert found.parameters_bytes == found.optimizer_bytes == 0
    assert found.gathered_bytes > 0


def test_tensor_parallelism_splits_all_but_experts() -> None:
    one, two = bound("sharding=full_shard"), bound("sharding=full_shard,tp_size=2")
    assert two.logits_bytes == one.logits_bytes // 2
    assert two.activations_bytes < one.activations_bytes
    text = "sharding=ddp,tp_size={}"
    whole = bound(text.format(1), config=MIXTRAL_OF_4_LAYERS)
    split = bound(text.format(2), config=MIXTRAL_OF_4_LAYERS)
    experts = 4 * 8 * 3 * 4096 * 14336 * 2
    assert split.parameters_bytes - experts == (whole.parameters_bytes - experts) // 2


def test_gathering_again_keeps_shards_only() -> None:
    text = "sharding=ddp,tp_size=8,tp_recompute_allgather={}"
    kept, again = bound(text.format("false")), bound(text.format("true"))
    inputs = 2 * 2 * 8192 * 4096 * 48  # two linears' inputs, bf16, hidden, tokens, layers
    assert kept.activations_bytes - again.activations_bytes == inputs * 7 // 8


@given(
    micro=st.integers(1, 64),
    more=st.integers(1, 64),
    accumulation=st.sampled_from([1, 2, 8]),
    sharding=st.sampled_from(list(Sharding)),
    tp=st.sampled_from([1, 2, 8]),
    sync=st.booleans(),
    checkpointing=st.sampled_from(["none", "full"]),
    precision=st.sampled_from(list(Precision)),
    config=st.sampled_from([CODELLAMA_34B, MIXTRAL_OF_4_LAYERS]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_larger_micro_batch_never_needs_less_and_the_floor_stays_below(
    micro: int,
    more: int,
    accumulation: int,
    sharding: Sharding,
    tp: int,
    sync: bool,
    checkpointing: str,
    precision: Precision,
    config: dict[str, object],
) -> None:
    workload = Workload(
        model=model(config), sequence_length=512, global_batch_size=64, precision=precision
    )
    one = Settings(
        sharding=sharding,
        tp_size=tp,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        sync_each_batch=sync,
        activation_checkpointing=parse_settings(
            f"activation_checkpointing={checkpointing}"
        ).activation_checkpointing,
    )
    cluster = parse_cluster("2x8xh100-80gb")
    small = memory_bound(workload, one, cluster)
    large = memory_bound(workload, replace(one, micro_batch_size=micro + more), cluster)
    assert small.total_bytes <= large.total_bytes
    assert small.floor_bytes == large.floor_bytes <= small.total_bytes
    assert min(vars_of(small)) >= 0


def vars_of(found: MemoryBound) -> list[int]:
    return [getattr(found, name) for name in MemoryBound.__dataclass_fields__]
