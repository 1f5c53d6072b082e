from dataclasses import replace

import pytest

from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Phase
from tuner.core.workload import Workload
from tuner.cost.constants import default_costs
from tuner.cost.memory.shards import Axis
from tuner.cost.time.collectives import (
    Op,
    Overlap,
    StepCollective,
    all_reducing_passes,
    axis_sizes,
    step_collectives,
)
from tuner.cost.time.communication import Computing, link_seconds, passes_s
from tuner.cost.time.emulated import Rates, copies_beside_s, exposed_s
from tuner.model import published_model as read

COSTS = default_costs()
NO_COPIES = Computing(forward=0.0, backward=0.0)
CLUSTER = parse_cluster("4x8xh100-80gb")
WORKLOAD = Workload(model=read("llama-3.1-8b"), sequence_length=4096, global_batch_size=256)
TEXTS = (
    "sharding=ddp",
    "sharding=full_shard",
    "sharding=shard_grad_op,gradient_accumulation_steps=4,sync_each_batch=false",
    "sharding=hybrid_shard,gradient_accumulation_steps=4",
    "sharding=hybrid_shard,gradient_accumulation_steps=4,defer_all_reduce=true",
    "sharding=full_shard,tp_size=8,tp_recompute_allgather=true",
)


def exposed(text, forward, backward, passes=None):
    settings = parse_settings(text)
    found = exposed_s(
        Computing(forward=forward, backward=backward),
        NO_COPIES,
        step_collectives(WORKLOAD, settings, CLUSTER),
        settings,
        passes or settings.gradient_accumulation_steps,
        Rates(cluster=CLUSTER, costs=COSTS),
    )
    return found.low_s, found.value_s, found.high_s


def test_a_step_that_was_timed_waits_as_one_that_is_predicted():
    """The same list has the same price, whoever made it."""
    for text in TEXTS:
        settings = parse_settings(text)
        collectives = step_collectives(WORKLOAD, settings, CLUSTER)
        links = link_seconds(collectives, axis_sizes(settings, CLUSTER), CLUSTER, COSTS)
        passes = settings.gradient_accumulation_steps
        synced = passes if settings.sync_each_batch else 1
        computing = Computing(forward=0.3, backward=0.6)
        joined = all_reducing_passes(settings)
        predicted = passes_s(
            computing, links, passes=passes, synced=synced, joined=joined, costs=COSTS
        )
        assert exposed(text, 0.3, 0.6)[1] == pytest.approx(predicted - 0.9)


HIDDEN_BYTES, LINK_BYTES_PER_S, MEMORY_BYTES_PER_S, LOST = 8e9, 1e11, 1e12, 0.3


def one_hidden_gather(phase=Phase.FORWARD):
    return StepCollective(Op.ALL_GATHER, Axis.DP_SHARD, phase, Overlap.PREFETCHED, 1, HIDDEN_BYTES)


def hand_costs():
    """Links and memory in round figures; each loses three tenths of the shorter to the other."""
    cluster = parse_cluster("8xh100-80gb")
    gpu = replace(cluster.gpu, memory_bytes_per_s=MEMORY_BYTES_PER_S)
    link = Link(bytes_per_s=LINK_BYTES_PER_S, latency_s=0.0)
    usual = {"intra_efficiency": 1.0, "overlap_cost": LOST, "collective_s": 0.0}
    costs = replace(COSTS, time=replace(COSTS.time, **usual))
    return replace(cluster, gpu=gpu, intra_node=link), costs


def test_what_a_hidden_gather_takes_from_computing_is_counted_once():
    """By hand: 8 GB to 8 ranks take 0.07 s on the links, of which computing loses 0.021 s.

    Alone, the copy in its place takes 0.009 s, which are in the 0.2 s that the phase was timed to
    take: without it that would be 0.191 s, on the cluster it is 0.212 s, so 0.012 s are missing.
    """
    for phase in [Phase.FORWARD, Phase.BACKWARD]:
        cluster, costs = hand_costs()
        settings, items = parse_settings("sharding=full_shard"), [one_hidden_gather(phase)]
        beside = copies_beside_s(items, settings, cluster)
        assert beside.forward + beside.backward == pytest.approx(0.009)
        assert (beside.forward > 0) is (phase is Phase.FORWARD)
        timed = Computing(forward=0.2, backward=0.2)
        rates = Rates(cluster=cluster, costs=costs)
        found = exposed_s(timed, beside, items, settings, 1, rates)
        assert found.value_s == pytest.approx(0.191 + 0.3 * 0.07 - 0.2)
        once = exposed_s(timed, NO_COPIES, items, settings, 1, rates)
        assert once.value_s == pytest.approx(0.3 * 0.07)
        assert found.high_s == once.high_s
        assert 0 < found.low_s < found.value_s
