"""Communication gets its price, and memory what is not there when a rank is alone."""

import json
from dataclasses import replace
from statistics import median

import pytest

from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Collective, Measurement, Memory, Outcome
from tuner.cost.constants import default_costs
from tuner.cost.time.emulated import Rates
from workers.measuring.measure import with_communication
from workers.measuring.records import RankEmulation

CLUSTER, USUAL = parse_cluster("8xa100-80gb"), default_costs()
SETTINGS = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=1, gradient_accumulation_steps=2)
STEPS = ({"forward": 0.1, "backward": 0.2, "optimizer": 0.05},) * 3
FIRST = Collective(
    op="all_gather", axis="dp_shard", phase="forward", count=2, bytes=10**9, overlap="exposed"
)
HIDDEN = replace(FIRST, count=20, overlap="prefetched")


def memory(allocated=2**30):
    return Memory(
        allocated_bytes=allocated,
        allocated_low_bytes=allocated,
        reserved_bytes=allocated,
        device_bytes=allocated + 500,
        overhead_bytes=500,
        by_phase={"forward": allocated},
        by_category={"parameters": 1},
        per_rank_bytes=(allocated,),
    )


def noted(*collectives, copies_s=0.0):
    return RankEmulation(
        phase_times_s={2: STEPS}, copies_s={2: {"forward": copies_s}}, collectives={2: collectives}
    )


def emulated(*collectives, cluster=CLUSTER, copies_s=0.0, stands_in=False):
    found = Measurement(outcome=Outcome.OK, memory=memory(), step_times_s={2: (0.35, 0.35, 0.35)})
    alone, rates = noted(*collectives, copies_s=copies_s), Rates(cluster=cluster, costs=USUAL)
    made = with_communication(found, alone, SETTINGS, rates, stands_in=stands_in)
    assert Measurement.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    return made


def test_computing_communication_and_their_sum_are_apart():
    made = emulated(FIRST, HIDDEN)
    exposed = made.emulation.exposed_s[2]
    assert made.emulation.compute_s[2] == pytest.approx((0.35, 0.35, 0.35))
    assert made.step_times_s[2] == pytest.approx((0.35 + exposed.value_s,) * 3)
    assert 0 < exposed.low_s < exposed.value_s < exposed.high_s


def test_what_is_hidden_costs_little():
    """A gigabyte that is waited for takes at least as long as the links need; a hidden one not."""
    seconds = 1e9 * 7 / 8 / 300e9
    exposed, hidden = (emulated(one).emulation for one in (FIRST, HIDDEN))
    assert exposed.exposed_s[2].value_s > seconds
    assert hidden.exposed_s[2].value_s < 0.5 * seconds


def test_copies_in_the_place_of_what_would_be_received_are_no_computing():
    made = emulated(FIRST, copies_s=0.03).emulation
    assert median(made.compute_s[2]) == pytest.approx(0.32)
    most = emulated(FIRST, copies_s=0.3).emulation
    assert median(most.compute_s[2]) == pytest.approx(0.3)  # noise: no more than half a phase


def test_copies_that_computing_hides_are_not_counted_twice():
    """What they took is in the timed step; a real gather takes the model's share in their place."""
    costs = replace(USUAL, time=replace(USUAL.time, overlap_cost=0.5))
    found = Measurement(outcome=Outcome.OK, memory=memory(), step_times_s={2: (0.35,) * 3})

    def exposed_s(bytes_per_s):
        cluster = replace(CLUSTER, gpu=replace(CLUSTER.gpu, memory_bytes_per_s=bytes_per_s))
        rates = Rates(cluster=cluster, costs=costs)
        made = with_communication(found, noted(HIDDEN), SETTINGS, rates, stands_in=False).emulation
        assert made.compute_s[2] == pytest.approx((0.35,) * 3)
        return made.exposed_s[2].value_s

    copied_s = (1e9 + 1e9 / 8) / 2e12
    assert exposed_s(None) - exposed_s(2e12) == pytest.approx(copied_s)
    assert exposed_s(2e12) > 0


def test_links_that_are_not_known_leave_memory_and_computing():
    cluster = replace(CLUSTER, intra_node=Link())
    made = emulated(FIRST, cluster=cluster)
    assert made.step_times_s == {}
    assert made.memory is not None
    assert made.emulation.compute_s[2] == pytest.approx((0.35, 0.35, 0.35))
    assert made.emulation.exposed_s == {}
    assert "link within a node" in made.emulation.unpriced


def test_communicators_are_beside_the_devices_own_overhead():
    made = emulated(FIRST).memory
    assert made.allocated_bytes == 2**30
    assert 100 * 2**20 < made.overhead_bytes - 500 < 4 * 2**30
    assert made.device_bytes - 2**30 == made.overhead_bytes
    on_cpu = emulated(cluster=parse_cluster("cpu:8")).memory
    assert on_cpu.overhead_bytes == 500


def test_copies_on_a_device_of_another_kind_took_what_its_memory_takes():
    """An H200 copies 2.35 times as quickly as an A100, and had that much less on its hands."""
    costs = replace(USUAL, time=replace(USUAL.time, overlap_cost=0.7))
    known = {"device": "NVIDIA H200", "total_memory_bytes": 150_108_897_280}

    def exposed_s(hardware, *, stands_in):
        found = Measurement(outcome=Outcome.OK, memory=memory(), hardware=hardware)
        rates = Rates(cluster=CLUSTER, costs=costs)
        made = with_communication(
            found, noted(HIDDEN), SETTINGS, rates, stands_in=stands_in
        ).emulation
        return made.exposed_s[2].value_s

    assert exposed_s({}, stands_in=True) == exposed_s(known, stands_in=False)
    own, cluster = (1e9 + 1e9 / 8) / 4800e9, (1e9 + 1e9 / 8) / 2039e9
    longer = exposed_s(known, stands_in=True) - exposed_s({}, stands_in=True)
    assert longer == pytest.approx(cluster - own)
