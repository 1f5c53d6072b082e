"""A knob that did not act is found by the collectives, whatever the settings say."""

from dataclasses import replace

import pytest

from tuner.measurement import Collective, Measurement, Outcome
from tuner.settings import Settings, parse_settings
from workers.knobs import check_knobs

SYNC = "sharding=full_shard,gradient_accumulation_steps=4,sync_each_batch="
LAYERS = 2


def measured(reducing: int = 0, forward: int = 0, backward: int = 0) -> Measurement:
    gathers = {"forward": forward, "backward": backward}
    return Measurement(
        outcome=Outcome.OK,
        tracked_accumulation=4,
        reducing_micro_batches=reducing,
        collectives=tuple(
            Collective(op="all_gather", axis="tp", phase=phase, count=count, bytes=1)
            for phase, count in gathers.items()
        ),
    )


def outcome(settings: Settings, measurement: Measurement, ranks: int = 2) -> Outcome:
    return check_knobs(settings, ranks, measurement).outcome


@pytest.mark.parametrize(
    ("sync", "reducing", "expected"),
    [
        ("true", 4, Outcome.OK),
        ("false", 1, Outcome.OK),
        ("true", 1, Outcome.KNOB_INACTIVE),  # as accelerate's state half set
        ("false", 4, Outcome.KNOB_INACTIVE),  # as FSDP2 before accelerate 1.11
        ("true", 0, Outcome.KNOB_INACTIVE),
    ],
)
def test_gradients_are_reduced_as_often_as_the_knob_says(
    sync: str, reducing: int, expected: Outcome
) -> None:
    assert outcome(parse_settings(SYNC + sync), measured(reducing)) is expected


def test_a_dead_knob_is_not_looked_at() -> None:
    settings = parse_settings(SYNC + "true")
    assert outcome(settings, measured(0), ranks=1) is Outcome.OK
    one = replace(measured(0), tracked_accumulation=1)
    assert outcome(settings, one) is Outcome.OK


@pytest.mark.parametrize("checkpointing", [0, 1])
@pytest.mark.parametrize("inside", [LAYERS, 2 * LAYERS], ids=["experts", "dense"])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("did", [True, False])
def test_backward_gathers_again_when_the_knob_says(
    checkpointing: int, inside: int, asked: bool, did: bool
) -> None:
    forward = 4 * (inside + 1)
    backward = forward * (1 + did) + 4 * inside * checkpointing
    settings = Settings(tp_size=2, tp_recompute_allgather=asked, gradient_accumulation_steps=4)
    expected = Outcome.OK if asked is did else Outcome.KNOB_INACTIVE
    assert outcome(settings, measured(0, forward, backward)) is expected


def test_the_detail_says_what_was_seen() -> None:
    checked = check_knobs(parse_settings(SYNC + "true"), 2, measured(1))
    assert checked.detail == (
        "sync_each_batch=true reduced gradients in 1 of 4 micro-batches instead of 4"
    )


def test_other_outcomes_stay() -> None:
    failed = Measurement(outcome=Outcome.OOM)
    assert check_knobs(parse_settings(SYNC + "true"), 2, failed) is failed
