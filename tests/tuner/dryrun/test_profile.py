"""Peaks and collectives of the whole model from traces of shallow ones."""

import json
from typing import Any

import pytest

from tests.tuner.dryrun.traces import linear_moments, trace
from tuner.dryrun import Profile, Trace

LAYERS = 48


def profile_of(moments: Any = linear_moments, layers: int = LAYERS, **more: Any) -> Profile:
    depths = [Trace.from_dict(trace(depth, moments, **more)) for depth in (4, 6)]
    return Profile.from_traces(depths, layers)


def whole(moments: Any = linear_moments, layers: int = LAYERS, **more: Any) -> Profile:
    return Profile.from_traces([Trace.from_dict(trace(layers, moments, **more))], layers)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_shallow_traces_say_what_the_whole_model_does(size: int, accumulation: int) -> None:
    assert profile_of().peak(size, accumulation) == whole().peak(size, accumulation)


def test_a_segment_that_overtakes_between_the_depths_is_found() -> None:
    shallow, deep = whole(layers=4), profile_of()
    assert shallow.peak(1, 1).phase == "loss"
    assert deep.peak(1, 1).phase == "optimizer"
    assert deep.peak(1, 1).total_bytes == 450 * LAYERS
    assert deep.peak(1, 1).breakdown["temporaries"] == 50 * LAYERS


def test_a_segment_that_overtakes_between_micro_batch_sizes_is_found() -> None:
    profile = profile_of()
    assert profile.peak(2, 1).phase == "optimizer"
    assert profile.peak(40, 1).phase == "loss"
    assert profile.peak(40, 1).total_bytes == 300 * LAYERS + 40 * (10 * LAYERS + 3000)


def test_a_moment_that_overtakes_within_a_segment_is_found() -> None:
    def moments(phase: str, part: str, depth: int, size: int, _: int) -> list[dict[str, int]]:
        if phase != "loss":
            return [{"parameters": 100 * depth}]
        return [{"temporaries": 5000}, {"logits_and_loss": 700 * size}]

    profile = profile_of(moments)
    assert profile.peak(3, 1).breakdown == {"temporaries": 5000}
    assert profile.peak(9, 1).breakdown == {"logits_and_loss": 6300}


def test_every_phase_has_its_highest_moment() -> None:
    peak = profile_of().peak(2, 1)
    assert peak.by_phase["forward"] == 300 * LAYERS + 20 * LAYERS
    assert peak.by_phase["loss"] == 300 * LAYERS + 20 * LAYERS + 6000
    assert max(peak.by_phase.values()) == peak.total_bytes


@pytest.mark.parametrize("size", [1, 5])
def test_categories_add_up(size: int) -> None:
    peak = profile_of().peak(size, 2)
    assert sum(peak.breakdown.values()) == peak.total_bytes
    assert min(peak.breakdown.values()) >= 0


def test_a_category_that_would_end_below_zero_takes_from_the_largest() -> None:
    def moments(phase: str, _: str, depth: int, size: int, __: int) -> list[dict[str, int]]:
        if phase == "optimizer" and depth == 4:
            return [{"parameters": 100, "logits_and_loss": 900}]
        return [{"parameters": 1050, "logits_and_loss": 0}]

    peak = profile_of(moments).peak(1, 1)
    assert peak.breakdown.get("logits_and_loss", 0) == 0
    assert sum(peak.breakdown.values()) == peak.total_bytes > 1050


def test_the_first_layers_are_their_own() -> None:
    def moments(phase: str, part: str, depth: int, size: int, _: int) -> list[dict[str, int]]:
        odd = phase == "backward" and part == "layer 1"
        return [{"parameters": 10 * depth, "temporaries": 7000 if odd else 0}]

    assert profile_of(moments).peak(1, 1).breakdown["temporaries"] == 7000


def test_more_micro_batches_than_were_run_need_what_the_most_did() -> None:
    profile = profile_of()
    assert profile.peak(3, 2).total_bytes > profile.peak(3, 1).total_bytes
    assert profile.peak(3, 64) == profile.peak(3, 2)


def test_fewer_micro_batches_than_were_run_are_refused() -> None:
    with pytest.raises(ValueError, match="accumulation: got 1; 2 or more"):
        profile_of(counts=(2,)).peak(1, 1)


def test_one_sequence_may_have_traces_of_its_own() -> None:
    def moments(phase: str, part: str, depth: int, size: int, _: int) -> list[dict[str, int]]:
        return [{"activations": depth * (10 if size == 1 else 100 * size)}]

    traces = [
        Trace.from_dict(trace(depth, moments, sizes=sizes))
        for depth in (4, 6)
        for sizes in ((1,), (2, 3))
    ]
    profile = Profile.from_traces(traces, LAYERS)
    assert [profile.peak(b, 1).total_bytes for b in (1, 2, 3, 8)] == [480, 9600, 14400, 38400]


def calls(depth: int, accumulation: int) -> list[dict[str, Any]]:
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


@pytest.mark.parametrize(("accumulation", "count"), [(1, 47), (2, 94), (7, 329)])
def test_collectives_grow_with_depth_and_micro_batches(accumulation: int, count: int) -> None:
    found = profile_of(collectives=calls).collectives(1, accumulation)
    gathers = next(c for c in found if c.axis == "dp_shard")
    assert (gathers.count, gathers.bytes) == (count, 64 * count)


def test_bytes_of_collectives_grow_with_the_micro_batch() -> None:
    found = profile_of(collectives=calls).collectives(5, 1)
    assert next(c.bytes for c in found if c.axis == "tp") == 5 * LAYERS


def test_arithmetic_bytes_are_those_of_the_whole_model() -> None:
    traces = [
        Trace.from_dict(trace(d, linear_moments, arithmetic_bytes={"ddp_buckets": 7 * d}))
        for d in (4, 6)
    ]
    assert Profile.from_traces(traces, LAYERS).arithmetic_bytes == {"ddp_buckets": 7 * LAYERS}


def test_a_profile_survives_json() -> None:
    profile = profile_of(collectives=calls)
    again = Profile.from_dict(json.loads(json.dumps(profile.as_dict())))
    assert again.as_dict() == profile.as_dict()
    assert again.peak(3, 2) == profile.peak(3, 2)
    assert again.collectives(3, 5) == profile.collectives(3, 5)


def test_profiles_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="format"):
        Profile.from_dict({**profile_of().as_dict(), "format": 99})


@pytest.mark.parametrize(
    ("depths", "sizes", "message"),
    [
        ((), (1, 2), "one or more"),
        ((4,), (1, 2), "says nothing of 48"),
        ((4, 4), (1, 2), "one or two depths"),
        ((4, 6, 8), (1, 2), "one or two depths"),
        ((4, 64), (1, 2), "at most"),
    ],
)
def test_traces_that_do_not_go_together_are_refused(
    depths: tuple[int, ...], sizes: tuple[int, ...], message: str
) -> None:
    traces = [Trace.from_dict(trace(depth, linear_moments, sizes=sizes)) for depth in depths]
    with pytest.raises(ValueError, match=message):
        Profile.from_traces(traces, LAYERS)


def test_traces_with_other_segments_are_refused() -> None:
    odd = trace(6, linear_moments)
    odd["steps"][0]["segments"][0]["part"] = "elsewhere"
    traces = [Trace.from_dict(trace(4, linear_moments)), Trace.from_dict(odd)]
    with pytest.raises(ValueError, match="segments of the depths differ"):
        Profile.from_traces(traces, LAYERS)
