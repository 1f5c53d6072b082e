"""What context parallelism costs, beside published runs and beside a rank's part alone."""

import csv
from dataclasses import replace
from pathlib import Path

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import FrameworkName, framework
from tuner.core.measurement import Basis
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.device import communicator_count
from tuner.cost.memory.shards import Axis, axis_sizes
from tuner.cost.prediction import RING_NOTE, predict
from tuner.cost.time.collectives import Op, step_collectives
from tuner.cost.time.communication import link_seconds
from tuner.cost.time.step import step_time
from tuner.model import load_model, read_model_config

PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "data" / "context_parallel.csv"
TORCH = framework("torch", {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"})
CLUSTER = parse_cluster("8xh100-80gb")


def workload(tokens, batch, **more):
    config = load_model("llama-3.1-8b").as_config() | {"max_position_embeddings": 2**20}
    return Workload(
        model=read_model_config(config, name="llama"), sequence_length=tokens,
        global_batch_size=batch, **more,
    )  # fmt: skip


def settings(ranks, more=""):
    return parse_settings(
        f"sharding=full_shard,cp_size={ranks},activation_checkpointing=full{more}"
    )


def test_published_runs_are_within_the_intervals_and_alike_in_memory():
    """The ratios of :data:`RING_NOTE`. Memory does not grow with the sequence, published or not:
    its peak is where logits are, which a rank has of its part."""
    gpu = replace(CLUSTER.gpu, name="h100-96gb", memory_bytes=95 * 2**30, memory_bytes_per_s=2.4e12)
    told, memory = [], []
    for row in csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines()):
        ranks = int(row["cp_size"])
        work = workload(
            int(row["sequence_length"]), 8 // ranks, precision=Precision.BF16_MIXED,
            reduce_dtype=ReduceDtype.FP32,
        )  # fmt: skip
        found = predict(work, replace(CLUSTER, gpu=gpu), TORCH, settings(ranks))
        speed, seen = found.tokens_per_s_per_gpu, float(row["tokens_per_s_per_gpu"])
        assert (speed.low or 0) < seen < (speed.high or 0)
        told.append(round(seen / (speed.value or 1), 2))
        memory.append((found.allocated_bytes.value or 0) / float(row["reserved_gib"]))
        assert (RING_NOTE in found.notes) is (ranks > 1)
    assert told == [0.99, 0.99, 0.7, 0.65]
    assert max(memory) / min(memory) < 1.01


def test_a_rank_holds_what_one_with_its_part_holds_and_the_ring():
    """A shard of all ranks, activations of a part; beside it the ring alone, in these phases."""
    many = parse_cluster("4x8xh100-80gb")
    whole = predict(workload(2**18, 32), many, TORCH, settings(32, ",fused_loss=true"))
    part = predict(workload(2**13, 32), many, TORCH, settings(1, ",fused_loss=true"))
    assert whole.basis is Basis.ARITHMETIC
    for name in ("parameters", "optimizer_state"):
        assert whole.breakdown[name] == part.breakdown[name]
    held = 2 * 2 * 2**18 * 1024  # keys and values of all ranks
    assert 0 < whole.by_phase["forward"] - part.by_phase["forward"] < 16 * 8192 * 4096 + held
    assert whole.by_phase["optimizer"] == part.by_phase["optimizer"]


def test_attention_meets_all_keys_whatever_the_ranks():
    """As many tokens a second where links and merging take next to nothing, for the work is one."""
    work = workload(2**18, 8)
    each = []
    for ranks in (1, 2, 4, 8):
        more = f",gradient_accumulation_steps={ranks}"
        found = step_time(
            work, settings(ranks, more), CLUSTER, FrameworkName.TORCH, default_costs()
        )[0]
        each.append(found.value or 0.0)
    assert each == sorted(each)
    assert each[-1] < 1.1 * each[0]


def test_rings_between_nodes_send_by_one_port():
    costs = default_costs()

    def seconds(cluster, op):
        sizes = axis_sizes(settings(16), cluster)
        work = workload(65536, 1).part(16)
        ours = [c for c in step_collectives(work, settings(16), cluster) if c.axis is Axis.CP]
        found = link_seconds([c for c in ours if c.op is op], sizes, cluster, costs)
        return found.gathers_backward + found.tensor_forward + found.tensor_backward

    one, two = parse_cluster("16xh100-80gb"), parse_cluster("2x8xh100-80gb")
    gathered = seconds(two, Op.ALL_GATHER) / seconds(one, Op.ALL_GATHER)
    assert seconds(two, Op.PERMUTE) / seconds(one, Op.PERMUTE) > 3 * gathered
    assert communicator_count(settings(2), one) == 2
    assert communicator_count(settings(16), one) == 1  # all ranks are one ring


def test_a_ring_counts_in_every_pass():
    def of_ring(more):
        found = step_collectives(workload(1024, 8), settings(2, more), CLUSTER)
        return {(c.op, c.phase): c for c in found if c.axis is Axis.CP}

    once, twice = of_ring(""), of_ring(",gradient_accumulation_steps=2")
    for key, one in once.items():
        assert (2 * one.count, 2 * one.bytes) == (twice[key].count, twice[key].bytes)
    assert once[("all_gather", "backward")].count == 2 * once[("all_gather", "forward")].count
