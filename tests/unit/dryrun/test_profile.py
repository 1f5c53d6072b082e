"""Peaks and collectives of the whole model from traces of shallow ones."""

import pytest

from tests.unit.dryrun.traces import linear_moments, trace
from tuner.dryrun import Profile, Trace

LAYERS = 48


def profile_of(moments=linear_moments, layers=LAYERS, **more):
    depths = [Trace.from_dict(trace(depth, moments, **more)) for depth in (4, 6)]
    return Profile.from_traces(depths, layers)


def whole(moments=linear_moments, layers=LAYERS, **more):
    return Profile.from_traces([Trace.from_dict(trace(layers, moments, **more))], layers)


def test_two_shallow_traces_say_what_the_whole_model_does():
    for size in [1, 2, 3, 8, 100]:
        for accumulation in [1, 2]:
            assert profile_of().peak(size, accumulation) == whole().peak(size, accumulation)


def test_a_segment_that_overtakes_between_the_depths_is_found():
    shallow, deep = whole(layers=4), profile_of()
    assert shallow.peak(1, 1).phase == "loss"
    assert deep.peak(1, 1).phase == "optimizer"
    assert deep.peak(1, 1).total_bytes == 450 * LAYERS
    assert deep.peak(1, 1).breakdown["temporaries"] == 50 * LAYERS


def test_a_segment_that_overtakes_between_micro_batch_sizes_is_found():
    profile = profile_of()
    assert profile.peak(2, 1).phase == "optimizer"
    assert profile.peak(40, 1).phase == "loss"
    assert profile.peak(40, 1).total_bytes == 300 * LAYERS + 40 * (10 * LAYERS + 3000)


def test_a_moment_that_overtakes_within_a_segment_is_found():
    def moments(phase, part, depth, size, _):
        if phase != "loss":
            return [{"parameters": 100 * depth}]
        return [{"temporaries": 5000}, {"logits_and_loss": 700 * size}]

    profile = profile_of(moments)
    assert profile.peak(3, 1).breakdown == {"temporaries": 5000}
    assert profile.peak(9, 1).breakdown == {"logits_and_loss": 6300}


def rivals(phase, part, depth, _, __):
    """Two moments of the optimizer: one grows with depth, and is the lower one at both depths."""
    if phase != "optimizer":
        return [{"parameters": 10 * depth}]
    return [{"parameters": 10 * depth, "temporaries": 5000}, {"parameters": 110 * depth}]


def test_moments_of_a_segment_that_change_places_with_depth_are_told_apart():
    assert whole(rivals).peak(1, 1).breakdown == {"temporaries": 5000, "parameters": 10 * LAYERS}
    assert profile_of(rivals).peak(1, 1) == whole(rivals).peak(1, 1)
    assert profile_of(rivals, 80).peak(3, 1).breakdown == {"parameters": 110 * 80}
    assert profile_of(rivals, 80).peak(3, 1) == whole(rivals, 80).peak(3, 1)


def test_moments_of_other_kinds_are_not_taken_for_one():
    def moments(phase, part, depth, size, _):
        found = rivals(phase, part, depth, size, 1)
        return found[::-1] if depth == 6 else found

    peak = profile_of(moments, 80).peak(1, 1)
    assert peak.total_bytes == 5000 + 10 * 80  # the highest at both depths


def test_a_category_that_would_end_below_zero_takes_from_the_largest():
    def moments(phase, _, depth, size, __):
        if phase == "optimizer" and depth == 4:
            return [{"parameters": 100, "logits_and_loss": 900}]
        return [{"parameters": 1050, "logits_and_loss": 0}]

    peak = profile_of(moments).peak(1, 1)
    assert peak.breakdown.get("logits_and_loss", 0) == 0
    assert sum(peak.breakdown.values()) == peak.total_bytes > 1050


def test_more_micro_batches_than_were_run_need_what_the_most_did():
    profile = profile_of()
    assert profile.peak(3, 2).total_bytes > profile.peak(3, 1).total_bytes
    assert profile.peak(3, 64) == profile.peak(3, 2)


def test_fewer_micro_batches_than_were_run_are_refused():
    with pytest.raises(ValueError, match="accumulation: got 1; 2 or more"):
        profile_of(counts=(2,)).peak(1, 1)


def test_one_sequence_may_have_traces_of_its_own():
    def moments(phase, part, depth, size, _):
        return [{"activations": depth * (10 if size == 1 else 100 * size)}]

    traces = [
        Trace.from_dict(trace(depth, moments, sizes=sizes))
        for depth in (4, 6)
        for sizes in ((1,), (2, 3))
    ]
    profile = Profile.from_traces(traces, LAYERS)
    assert [profile.peak(b, 1).total_bytes for b in (1, 2, 3, 8)] == [480, 9600, 14400, 38400]


def calls(depth, accumulation):
    kind = {"op": "all_gather", "axis": "dp_shard", "overlap": "prefetched"}
    count = (depth - 1) * accumulation
    forward = {**kind, "phase": "forward", "count": count, "bytes": [64 * count, 64 * count]}
    wide = {
        **kind,
        "axis": "tp",
        "phase": "backward",
        "count": 2 * depth,
        "bytes": [depth, 2 * depth],
    }
    return [forward, wide]


def test_collectives_grow_with_depth_and_micro_batches():
    for accumulation, count in [(1, 47), (2, 94), (7, 329)]:
        found = profile_of(collectives=calls).collectives(1, accumulation)
        gathers = next(c for c in found if c.axis == "dp_shard")
        assert (gathers.count, gathers.bytes) == (count, 64 * count)


def test_traces_that_do_not_go_together_are_refused():
    for depths, sizes, message in [
        ((), (1, 2), "one or more"),
        ((4,), (1, 2), "says nothing of 48"),
        ((4, 4), (1, 2), "one or two depths"),
        ((4, 6, 8), (1, 2), "one or two depths"),
        ((4, 64), (1, 2), "at most"),
    ]:
        traces = [Trace.from_dict(trace(depth, linear_moments, sizes=sizes)) for depth in depths]
        with pytest.raises(ValueError, match=message):
            Profile.from_traces(traces, LAYERS)
