from dataclasses import replace

import pytest

from tuner.core.cluster import Cluster, Device, Gpu, Link, parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import FrameworkName
from tuner.core.quantity import Provenance
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.pipeline import pipeline_seconds
from tuner.cost.time.step import missing_rate, step_notes, step_time
from tuner.model import published_model as read

TORCH, NANOTRON = FrameworkName.TORCH, FrameworkName.NANOTRON


def asked(text, cluster, framework=TORCH, precision=Precision.BF16):
    workload = Workload(
        model=read("llama-3.2-1b"), sequence_length=2048, global_batch_size=64, precision=precision
    )
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    return step_time(workload, parse_settings(text), where, framework, default_costs())


def test_what_is_not_known_is_said():
    for text, cluster, why in [
        ("", "cpu:2", "CPU"),
        ("", "8xv100-32gb", "matrix rate"),
        ("sharding=full_shard,cpu_offload=true", "known", "host"),
        ("sharding=full_shard", "no links", "within a node"),
        ("sharding=hybrid_shard", "no network", "between nodes"),
        ("tp_size=8", "no memory rate", "bandwidth"),
    ]:
        found, reason = asked(text, special(cluster))
        assert found.provenance is Provenance.UNKNOWN
        assert found.value is None
        assert why in reason


def special(name):
    """An H100 of the user's own, with something missing."""
    h100 = parse_cluster("2x8xh100-80gb")
    own = replace(h100, gpu=replace(h100.gpu, name="mine"))
    if name == "no memory rate":
        return replace(own, gpu=replace(own.gpu, memory_bytes_per_s=None))
    if name == "no network":
        return replace(own, inter_node=Link())
    if name == "no links":
        return replace(own, intra_node=Link())
    return own if name == "known" else name


def test_intervals_are_narrow_only_where_fitted_runs_were_alike():
    mixed, fitted = Precision.BF16_MIXED, "sharding=full_shard,micro_batch_size=2"
    slow = replace(parse_cluster("4x8xa100-80gb"), inter_node=Link(bytes_per_s=1e9, latency_s=1e-5))
    t = default_costs().time
    for text, cluster, precision, high in [
        (fitted, "8xa100-80gb", mixed, t.torch.high),
        (f"{fitted},activation_checkpointing=full", "4x8xa100-80gb", mixed, t.torch.high),
        (fitted, slow, mixed, t.torch_other.high),
        (fitted, "8xa100-80gb", Precision.BF16, t.torch_other.high),
        ("sharding=ddp,micro_batch_size=2", "8xa100-80gb", mixed, t.torch_other.high),
        (f"{fitted},activation_checkpointing=selective", "8xa100-80gb", mixed, t.torch_other.high),
        (f"{fitted},fused_loss=true", "8xa100-80gb", mixed, t.torch_other.high),
        (f"{fitted},tp_size=2", "8xa100-80gb", mixed, t.torch_other.high),
        (fitted, "8xh100-80gb", mixed, t.torch_other.high),
        (fitted, "8xl4", mixed, t.unfitted.high),
    ]:
        found, _ = asked(text, cluster, precision=precision)
        assert found.high == pytest.approx(high * found.value), (text, cluster)


def test_nanotrons_groups_count_too():
    gpu = Gpu(name="mine", device=Device.CUDA, memory_bytes=2**36, memory_bytes_per_s=3e12,
              dense_bf16_flops_per_s=1e15)  # fmt: skip
    cluster = Cluster(nodes=2, gpus_per_node=1, gpu=gpu, intra_node=Link(), inter_node=Link())
    workload = Workload(model=read("llama-3.2-1b"), sequence_length=128, global_batch_size=8)
    for text in ("pp_size=2", "sharding=zero1"):
        reason = missing_rate(workload, parse_settings(text), cluster, piped=True)
        assert "between nodes" in reason


COSTS = default_costs()
PIPED = "pp_size=8,gradient_accumulation_steps=64"
H100, A100 = "2x8xh100-80gb", "2x8xa100-80gb"


def piped(text, cluster, *, sequence_length=4096, fits=True):
    """llama-3.1-8b's step time, its parts, and what is told of it."""
    workload = Workload(
        model=read("llama-3.1-8b"), sequence_length=sequence_length, global_batch_size=128
    )
    settings, where = parse_settings(text), parse_cluster(cluster)
    found, _ = step_time(workload, settings, where, NANOTRON, COSTS, fits=fits)
    notes = step_notes(workload, settings, where, NANOTRON, COSTS, fits=fits)
    return found, pipeline_seconds(workload, settings, where, COSTS), notes


def ends(quantity):
    assert quantity.value is not None
    assert quantity.low is not None
    assert quantity.high is not None
    return quantity.low, quantity.value, quantity.high


def test_the_interval_of_a_stalled_step_holds_both_modes():
    (found, parts, notes), (other, _, none) = (
        piped(f"sharding={sharding},{PIPED}", H100) for sharding in ("ddp", "zero1")
    )
    low, value, high = ends(found)
    assert value == parts.expected_s > 5 * parts.unstalled_s
    assert low == pytest.approx(COSTS.time.pipelined.low * parts.unstalled_s)
    assert high == pytest.approx(COSTS.time.pipelined.high * parts.most_s)
    assert low < ends(other)[2]
    assert f"{value - parts.unstalled_s:.3g} s of this step" in notes[0]
    assert "pipelines over nodes" in notes[0]
    assert none == ()


def test_replicated_pipelines_over_nodes_stall_and_sharded_ones_hardly():
    replicated, sharded = (piped(f"sharding={one},{PIPED}", H100)[1] for one in ("ddp", "zero1"))
    slots = 64 + 8 - 1
    assert replicated.exchange_stall_s == pytest.approx(2 * slots * COSTS.time.stall_s)
    assert sharded.exchange_stall_s < 0.01 * replicated.exchange_stall_s
    assert sharded.unstalled_s == pytest.approx(replicated.unstalled_s, rel=0.2)
