"""A step's time from what was launched: queues that wait for each other, each entry priced."""

from dataclasses import replace

import pytest

from tuner.core.cluster import Link, parse_cluster
from tuner.cost.constants import default_costs
from tuner.cost.time.communication import Group, ring_s
from tuner.cost.time.compute import LAYER_KERNELS
from tuner.cost.time.rehearsed import Launches, rehearsed_time

COSTS = default_costs()
H100 = parse_cluster("2x8xh100-80gb")
BANDWIDTH = H100.gpu.memory_bytes_per_s or 0.0
LAUNCH_S = COSTS.torch.layer_host_s / LAYER_KERNELS
COMPUTES, SENDS = 0, 1  # streams
# Bytes that a kernel moves in a tenth of a second.
TENTH = 0.1 * BANDWIDTH / COSTS.torch.traffic_factor


def kernel(seconds=0.1, phase="forward", **amounts):
    moved = {"moved_bytes": seconds / 0.1 * TENTH} if seconds else {}
    amounts = {"kernels": 1.0, **moved, **amounts}
    return {"name": "aten.mul", "phase": phase, "numbers": "", "amounts": amounts}


def sent(size, op="all_gather", ranks=8, ranks_per_node=8):
    return {"op": op, "ranks": ranks, "ranks_per_node": ranks_per_node, "bytes": size}


ONE = (kernel(),)


def found(queue, operators=ONE, collectives=(), tokens=0, cluster=H100, **given):
    values = {"operators": operators, "collectives": collectives, "queue": queue}
    told = Launches.from_dict(values | {"full": False, "tokens": tokens, "uncounted": []})
    return rehearsed_time(told, cluster, COSTS, **given)


def around(group, size):
    return ring_s(size, 1, group, H100, COSTS, twice=False)


def test_kernels_of_a_stream_take_their_turns():
    time = found([("operator", COMPUTES, 0)] * 5)
    assert time.step_time_s.value == pytest.approx(0.5, rel=1e-3)
    width = COSTS.time.unfitted
    assert time.step_time_s.low == pytest.approx(width.low * 0.5, rel=1e-3)
    assert time.step_time_s.high == pytest.approx(width.high * 0.5, rel=1e-3)
    assert time.step_time_s.provenance == "predicted"
    assert time.exposed_s.value == 0
    assert [(part.kind, part.phase) for part in time.parts] == [("other kernels", "forward")]


def test_a_product_takes_its_flops_time_in_the_format_of_its_result():
    flops = {"product_flops": 1e15}
    product = kernel(0, **flops) | {"numbers": "bfloat16"}
    half = found([("operator", COMPUTES, 0)], [product])
    tf32 = found([("operator", COMPUTES, 0)], [product | {"numbers": "tf32"}])
    assert half.parts[0].kind == "matrix products"
    assert tf32.step_time_s.value == pytest.approx(2 * half.step_time_s.value)
    wide = found([("operator", COMPUTES, 0)], [product | {"numbers": "float64"}])
    assert wide.unknown == "the matrix rate in float64 of h100-80gb is not known"
    assert wide.step_time_s.value is None


def test_unaligned_products_take_longer():
    flops = {"product_flops": 1e15}
    product = kernel(0, **flops) | {"numbers": "bfloat16"}
    odd = kernel(0, **flops, unaligned_flops=1e15) | {"numbers": "bfloat16"}
    aligned, slower = (found([("operator", COMPUTES, 0)], [one]) for one in (product, odd))
    assert slower.step_time_s.value == pytest.approx(1e15 / COSTS.torch.unaligned_flops_per_s)
    assert slower.step_time_s.value > 5 * aligned.step_time_s.value


def test_a_narrow_product_in_fp32_waits_for_twice_the_bytes():
    """As of an adapter's: 16 wide, whose flops are nothing, though the rate is a fraction."""
    tokens, width, rank = 1 << 20, 4096, 16
    sides = {"product_sides": 2.0 * tokens * (width + rank)}
    product = kernel(0, **sides) | {"numbers": "bfloat16"}
    half = found([("operator", COMPUTES, 0)] * 9, [product]).step_time_s.value
    whole = found([("operator", COMPUTES, 0)] * 9, [product | {"numbers": "float32"}])
    tf32 = found([("operator", COMPUTES, 0)] * 9, [product | {"numbers": "tf32"}])
    assert whole.step_time_s.value == pytest.approx(2 * half, rel=0.01)
    assert tf32.step_time_s.value == pytest.approx(2 * half, rel=0.01)


def test_the_quicker_attention_is_the_low_end_only():
    attention = kernel(0, attention_flops=1e15, attention_scores=1e13) | {"numbers": "bfloat16"}
    time = found([("operator", COMPUTES, 0)], [attention])
    assert time.parts[0].kind == "attention"
    low = COSTS.time.unfitted.low * time.step_time_s.value / COSTS.torch.attention_quicker
    assert time.step_time_s.low == pytest.approx(low)


def test_small_kernels_wait_for_the_host():
    queue = [("operator", COMPUTES, 0)] * 100
    time = found(queue, [kernel(1e-7)])
    assert time.step_time_s.value == pytest.approx(100 * LAUNCH_S)
    assert time.host_s == pytest.approx(100 * (LAUNCH_S - 1e-7))


def test_a_host_that_waits_launches_late():
    # long kernels hide the launching of short ones, but for what follows a look at a value
    short = [("operator", COMPUTES, 1)] * 1000
    plain = found([("operator", COMPUTES, 0), *short], [kernel(), kernel(1e-7)])
    looks = [("operator", COMPUTES, 0), ("host_waits_stream", COMPUTES, 0), *short]
    late = found(looks, [kernel(), kernel(1e-7)])
    assert plain.step_time_s.value == pytest.approx(0.1001, rel=1e-3)
    assert late.step_time_s.value == pytest.approx(0.1 + 1001 * LAUNCH_S, rel=1e-2)


def test_what_the_host_computes_is_shared_by_the_ranks_of_a_node():
    offloaded = {"name": "aten.add", "phase": "optimizer", "numbers": "",
                 "amounts": {"on_host_bytes": 1e9}}  # fmt: skip
    time = found([("operator", COMPUTES, 0)] * 2, [offloaded])
    assert time.step_time_s.value == pytest.approx(16e9 / COSTS.time.host_memory_bytes_per_s)


GATHER = [("collective", SENDS, 0), ("records", SENDS, 7)]


def test_a_gather_hides_behind_what_does_not_wait_for_it():
    size = 1e9
    sending = around(Group(ranks=8, ranks_per_node=8), size)
    compute = [("operator", COMPUTES, 0)]
    before = [("records", COMPUTES, 3), ("waits", SENDS, 3)]
    hidden = found([*before, *GATHER, *compute, ("waits", COMPUTES, 7)], collectives=[sent(size)])
    shared = COSTS.time.overlap_cost * sending
    assert hidden.step_time_s.value == pytest.approx(0.1 + shared, rel=1e-3)
    assert hidden.exposed_s.value == pytest.approx(shared, rel=1e-3)
    # the step's first kernel waits for the gather, which begins when the last step's are done
    waits = found([*before, *GATHER, ("waits", COMPUTES, 7), *compute], collectives=[sent(size)])
    assert waits.exposed_s.value == pytest.approx(sending, rel=1e-3)
    assert waits.exposed_s.low == pytest.approx(COSTS.time.unfitted.low * sending, rel=1e-3)


def test_streams_share_a_link_and_not_two():
    size = 2e9
    queue = [("collective", 1, 0), ("collective", 2, 1), ("operator", COMPUTES, 0)]
    near, far = (8, 8), (2, 1)

    def step(*groups):
        return found(
            queue, [kernel(1e-6)], [sent(size, "reduce_scatter", *group) for group in groups]
        ).step_time_s.value

    within, between = (around(Group(ranks=n, ranks_per_node=m), size) for n, m in (near, far))
    assert step(near, near) == pytest.approx(2 * within, rel=1e-3)
    assert step(near, far) == pytest.approx(max(within, between), rel=1e-3)


def test_who_is_ready_first_is_sent_first():
    # a reduction that waits for computing does not hold up a gather that is called after it
    size = 1e8
    waits = [("records", COMPUTES, 1), ("waits", 2, 1)]
    late = [("operator", COMPUTES, 0), *waits, ("collective", 2, 0), ("records", 2, 2)]
    queue = [*late, *GATHER, ("waits", COMPUTES, 7), ("operator", COMPUTES, 0)]
    end = [("waits", COMPUTES, 2)]
    time = found([*queue, *end], collectives=[sent(size)])
    shared = COSTS.time.overlap_cost * around(Group(ranks=8, ranks_per_node=8), size)
    assert time.step_time_s.value == pytest.approx(0.2 + 2 * shared, rel=1e-3)


def test_tokens_are_each_ranks_own_or_as_said():
    queue = [("operator", COMPUTES, 0)]
    assert found(queue).tokens_per_s.value is None
    time = found(queue, tokens=100)
    assert time.tokens_per_step == 1600
    assert time.tokens_per_s.value == pytest.approx(16_000, rel=1e-3)
    assert time.tokens_per_s.low == pytest.approx(16_000 / COSTS.time.unfitted.high, rel=1e-3)
    assert found(queue, tokens=100, tokens_per_step=10).tokens_per_step == 10


@pytest.mark.parametrize(
    ("queue", "collectives", "cluster", "reason"),
    [
        ([], [], H100, "the step launched nothing"),
        (
            [("operator", 0, 0), ("collective", 1, 0)], [sent(1, "send")], H100,
            "it calls send, whose other end was not rehearsed",
        ),
        (
            [("operator", 0, 0), ("collective", 1, 0)], [sent(1, ranks=16)],
            replace(H100, inter_node=Link()),
            "the bandwidth of the link between nodes is not known",
        ),
    ],
)  # fmt: skip
def test_what_has_no_price_is_unknown_with_the_reason(queue, collectives, cluster, reason):
    time = found(queue, collectives=collectives, cluster=cluster)
    assert (time.unknown, time.step_time_s.value) == (reason, None)


def test_more_than_can_be_noted_is_unknown():
    values = {"operators": [], "collectives": [], "queue": [], "full": True, "tokens": 0}
    time = rehearsed_time(Launches.from_dict(values | {"uncounted": ["a.b"]}), H100, COSTS)
    assert (time.unknown, time.uncounted) == ("the step launches more than is noted", ("a.b",))
