from dataclasses import replace

import pytest

from tuner.catalog.gpus import matmul_share
from tuner.core.adapter import Adapter
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.tensors import counts
from tuner.cost.prediction import predict
from tuner.cost.time.step import sharded_step_s, step_notes, step_time
from tuner.model import published_model as read

H100, NODES, PCIE = "8xh100-80gb", "4x8xh100-80gb", "4x8xa100-80gb-pcie"


def workload(model="llama-3.1-8b", **more):
    asked = Workload(model=read(model), sequence_length=4096, global_batch_size=1024)
    return replace(asked, **more)


def seconds(text, cluster=H100, asked=None):
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    return sharded_step_s(asked or workload(), parse_settings(text), where, default_costs())[0]


def test_syncing_each_batch_costs_little_where_links_are_fast():
    for sharding in ["ddp", "shard_grad_op", "full_shard", "hybrid_shard"]:
        text = f"sharding={sharding},gradient_accumulation_steps=16,sync_each_batch="
        fast = seconds(text + "true") / seconds(text + "false")
        slow = seconds(text + "true", PCIE) / seconds(text + "false", PCIE)
        assert 1 < fast < 1.1
        assert fast < slow < 2


def test_gathers_hide_behind_large_micro_batches():
    """Per token, a slower network matters less the more there is to compute."""
    slow = replace(parse_cluster(NODES), inter_node=Link(bytes_per_s=5e9, latency_s=14e-6))
    lost = [
        seconds(f"sharding=full_shard,micro_batch_size={size}", slow)
        / seconds(f"sharding=full_shard,micro_batch_size={size}", NODES)
        for size in (1, 4, 16)
    ]
    assert lost[0] > lost[1] > lost[2]
    assert lost[2] < 1.2 < lost[0]


def test_offloading_passes_the_hosts_link():
    text = "sharding=full_shard,micro_batch_size=2,cpu_offload="
    kept, moved = seconds(text + "false"), seconds(text + "true")
    assert 1.2 < moved / kept < 10
    no_network = replace(parse_cluster(H100), inter_node=Link())
    assert seconds(text + "true", no_network) == moved


def test_inputs_of_layers_go_to_the_host_and_come_back():
    text = "sharding=full_shard,gradient_accumulation_steps=4,activation_checkpointing="
    more = seconds(text + "offload") - seconds(text + "full")
    each = 32 * 4096 * 4096 * 2  # layers x tokens x hidden size in bf16
    assert 0.9 < more / (4 * 2 * each / 63e9) <= 1.001  # nothing hides it, and it hides gathers


def test_replicated_experts_are_summed_over_the_tensor_parallel_ranks():
    text = "tp_size=8,gradient_accumulation_steps={}"
    asked = workload("mixtral-8x7b")
    once = 2 * seconds(text.format(1), H100, asked) - seconds(text.format(2), H100, asked)
    whole = 2 * 2 * counts(asked.model).parameters * 7 / 8 / 450e9  # seconds of an ideal all-reduce
    assert once > 0.8 * whole


def test_muon_multiplies_matrices_in_its_step():
    """Five times a square of the shorter side, that times itself, and times the matrix."""
    plain, muon = (workload(optimizer=one) for one in (Optimizer.ADAMW, Optimizer.MUON))
    more = seconds("", asked=muon) - seconds("", asked=plain)
    sides = ((4096, 4096, 2), (1024, 4096, 2), (4096, 14336, 3))
    flops = 32 * 5 * sum(n * (4 * m**2 * k + 2 * m**3) for m, k, n in sides)
    assert more == pytest.approx(flops / (989.4e12 * matmul_share("h100-80gb")), rel=0.15)


def test_the_interval_of_paged_state_holds_that_all_of_it_goes_and_comes_back():
    state, one = 2 * 8.03e9, parse_settings("")
    found = {}
    for optimizer in (Optimizer.ADAMW_BNB_8BIT, Optimizer.PAGED_ADAMW_8BIT):
        asked = workload(optimizer=optimizer), one, parse_cluster(H100), FrameworkName.TORCH
        found[optimizer], _ = step_time(*asked, default_costs())
        notes = step_notes(*asked, default_costs())
        paged = optimizer is Optimizer.PAGED_ADAMW_8BIT
        assert [note.startswith("15 GiB of optimizer state") for note in notes] == [True] * paged
    kept, paged = found.values()
    assert (kept.value, kept.low) == (paged.value, paged.low)
    assert paged.high - kept.high == pytest.approx(2 * state / (63e9 / 2), rel=0.01)
    shown = predict(asked[0], asked[2], Framework(name=asked[3]), one).device_bytes
    assert shown.high == parse_cluster(H100).gpu.memory_bytes  # nvidia-smi shows what has not gone


def test_adapters_take_launches_and_autocasts_casts():
    """Of fp32 matrices under DDP's autocast; FSDP2 gathers them narrow."""
    narrow = workload(adapter=Adapter(dropout=0.0))
    mixed = replace(narrow, precision=Precision.BF16_MIXED)
    for text, casts in (("sharding=ddp", 1.0), ("sharding=full_shard", 0.0)):
        more = seconds(f"{text},micro_batch_size=4", H100, mixed)
        more -= seconds(f"{text},micro_batch_size=4", H100, narrow)
        inputs = 4096 * 6 + 14336  # channels that a layer's seven linears take
        each = 2 * (2 + 4) * inputs * 4 * 4096 * 32  # there and back, of all tokens and layers
        assert more / (3 * each / 3.35e12) == pytest.approx(casts, abs=0.1)
    short = [replace(one, sequence_length=32) for one in (narrow, mixed)]  # the host's path
    plain, cast = (seconds("micro_batch_size=1", "1xh100-80gb", one) for one in short)
    # 7 linears of 4 kernels each, or 8, beside 38
    assert cast / plain == pytest.approx((38 + 7 * 8) / (38 + 7 * 4), rel=0.05)
