"""DeepSpeed's memory and collectives follow the formulas of its source."""

from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.memory.tensors import model_tensors
from tuner.cost.memory.zero import DEFAULTS, zero_memory
from tuner.cost.prediction import predict, uncovered
from tuner.cost.time.collectives import Op, Overlap, zero_collectives
from tuner.cost.time.communication import Axis
from tuner.model import load_model

MODEL = load_model("llama-3.1-8b")
SIZES = [tensor.elements for tensor in model_tensors(MODEL).all]
ELEMENTS = sum(SIZES)
TWO_NODES = parse_cluster("2x8xa100-80gb")
WORK = Workload(
    model=MODEL,
    sequence_length=1024,
    global_batch_size=64,
    precision=Precision.BF16_MIXED,
    reduce_dtype=ReduceDtype.BF16,
)
ZERO = Framework(name=FrameworkName.DEEPSPEED, versions={"deepspeed": "0.19.8"})


def held(text, zero=DEFAULTS, work=WORK, cluster=TWO_NODES):
    """Bytes by category at the peak of backward."""
    return zero_memory(work, parse_settings(text), cluster, zero).breakdown("backward")


def test_each_stage_splits_more():
    # fp32 weights and two moments: 12 bytes of each parameter, or of a rank's part
    for sharding, parameters, state in (
        ("ddp", 2, 12),
        ("zero1", 2, 12 / 16),
        ("shard_grad_op", 2, 12 / 16),
        ("full_shard", 2 / 16, 12 / 16),
    ):
        found = held(f"sharding={sharding}")
        assert found["parameters"] == pytest.approx(parameters * ELEMENTS, rel=0.01)
        assert found["optimizer_state"] == pytest.approx(state * ELEMENTS, rel=1e-6)


def test_narrow_state_is_of_two_bytes():
    narrow = replace(WORK, precision=Precision.BF16)
    found = held("sharding=shard_grad_op", work=narrow)["optimizer_state"]
    assert found == pytest.approx(6 / 16 * ELEMENTS, rel=1e-6)


def test_buckets_are_of_the_size_asked_for_and_two_where_they_overlap():
    small = replace(DEFAULTS, reduce_bucket_size=10_000_000)
    both = replace(small, overlap_comm=True)
    for sharding in ("zero1", "shard_grad_op"):
        assert held(f"sharding={sharding}", small)["ddp_buckets"] == 2e7
        assert held(f"sharding={sharding}", both)["ddp_buckets"] == 4e7
    # stage 3 has one, for good
    assert held("sharding=full_shard", both)["ddp_buckets"] == 2e7
    accumulated = "sharding=zero1,gradient_accumulation_steps=4"
    forward = zero_memory(WORK, parse_settings(accumulated), TWO_NODES, small).breakdown("forward")
    assert forward["ddp_buckets"] == 2e7  # until the last micro-batch's epilogue


def test_secondary_shards_are_within_a_node():
    more = held("sharding=hybrid_shard")["parameters"] - held("sharding=full_shard")["parameters"]
    assert more == pytest.approx(2 * ELEMENTS / 8, rel=1e-6)


def test_gathered_parameters_are_as_many_as_may_live():
    few = replace(DEFAULTS, max_live_parameters=10**8, max_reuse_distance=10**7)
    less = held("sharding=full_shard")["gathered_parameters"]
    less -= held("sharding=full_shard", few)["gathered_parameters"]
    assert less == 2 * 9 * 10**8


def test_on_the_host_is_what_the_stage_lets_go():
    two, three = (f"sharding={name},cpu_offload=true" for name in ("shard_grad_op", "full_shard"))
    assert held(two)["parameters"] == pytest.approx(2 * ELEMENTS, rel=0.01)
    assert "optimizer_state" not in held(two)
    persistent = sum(size for size in SIZES if size <= DEFAULTS.param_persistence_threshold)
    assert held(three)["parameters"] == pytest.approx(2 * persistent, rel=0.01)


def test_collectives_of_each_stage():
    settings = "gradient_accumulation_steps=4,sync_each_batch="
    whole = 2 * ELEMENTS

    def sent(sharding, sync):
        one = parse_settings(f"sharding={sharding},{settings}{sync}")
        return zero_collectives(WORK, one, TWO_NODES)

    for sharding, sync, times, gathers in (
        ("ddp", "false", 1, 0),
        ("zero1", "false", 1, 1),
        ("shard_grad_op", "true", 4, 1),
    ):
        reduce, *rest = sent(sharding, sync)
        assert (reduce.op, reduce.bytes) == (Op.ALL_REDUCE, times * whole)
        assert reduce.overlap is Overlap.EXPOSED
        assert [(one.op, one.bytes) for one in rest] == [(Op.ALL_GATHER, whole)] * gathers
    reduce, *rest = sent("full_shard", "true")
    assert (reduce.op, reduce.overlap) == (Op.REDUCE_SCATTER, Overlap.BEHIND_BACKWARD)
    assert sum(one.bytes for one in rest) == pytest.approx(8 * whole, rel=0.001)
    # the first forward gathers from all ranks, all else within a node
    reduce, *rest = sent("hybrid_shard", "true")
    near = sum(one.bytes for one in rest if one.axis is Axis.DP_SHARD)
    assert near == pytest.approx(7 * whole, rel=0.001)


def test_the_prediction_says_what_it_is():
    settings = parse_settings("sharding=shard_grad_op,gradient_accumulation_steps=4")
    found = predict(WORK, TWO_NODES, ZERO, settings)
    assert found.basis == "arithmetic"
    assert any("no published run of DeepSpeed" in note for note in found.notes)
    assert found.tokens_per_s_per_gpu.low < found.tokens_per_s_per_gpu.value


def test_what_is_not_covered_is_refused_by_name():
    narrow = replace(WORK, precision=Precision.BF16)
    for text, why in (
        ("sharding=ddp", "without ZeRO"),
        ("sharding=full_shard,cpu_offload=true", "CPU Adam"),
    ):
        assert why in predict(narrow, TWO_NODES, ZERO, parse_settings(text)).why
    assert "adafactor" in uncovered(replace(WORK, optimizer="adafactor"), ZERO)
    assert uncovered(WORK, ZERO) == ""
