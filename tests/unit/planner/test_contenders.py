from dataclasses import replace
from math import exp
from types import SimpleNamespace

import pytest

from tuner.core.evaluation import Evaluation
from tuner.planner.knowledge import Knowledge, learn
from tuner.planner.step_times import REACH, Seen, fair
from tuner.planner.timing import RunVariation
from tuner.space import enumerate_space


def known_of(lab: SimpleNamespace, *seconds: float) -> Knowledge:
    """Of settings that fit and took so long each, in ten equal steps."""
    question = lab.question("cpu:2", 96)
    legal = enumerate_space(question).legal
    probes = [
        lab.probe(n, one, lab.ok(time, 2**28, count=one.gradient_accumulation_steps))
        for n, (one, time) in enumerate(zip(legal, seconds, strict=False), start=1)
    ]
    return learn(lab.study(question, probes=probes))


def both(lab: SimpleNamespace, *seconds: float) -> tuple[tuple[Evaluation, ...], list[Evaluation]]:
    """Findings, fastest first, and the fair ones."""
    known = known_of(lab, *seconds)
    moved = fair(known)
    return known.fitting, [moved[finding.settings] for finding in known.fitting]


def test_where_nothing_fits_there_is_nothing(lab: SimpleNamespace) -> None:
    assert fair(known_of(lab)) == {}


def test_one_alone_and_those_far_behind_keep_their_intervals(lab: SimpleNamespace) -> None:
    for seconds in ([1.0], [1.0, 1.0 + 1.1 * REACH]):
        alone, moved = both(lab, *seconds)
        assert list(alone) == moved
    assert both(lab, 1.0, 1.02, 2.0)[1][:2] == both(lab, 1.0, 1.02)[1]


def test_the_fastest_of_many_is_believed_to_be_a_lucky_one(lab: SimpleNamespace) -> None:
    seconds = [1.0, *(1.02 + 0.001 * n for n in range(8))]
    (own, *_), (moved, *_) = both(lab, *seconds)
    assert moved.settings == own.settings
    assert moved.step_time_s.value == own.step_time_s.value == 1.0
    assert 1.0 - moved.step_time_s.low < 0.7 * (1.0 - own.step_time_s.low)
    assert moved.step_time_s.high > 1.02


def test_an_interval_holds_its_value_however_unlikely_that_is(
    lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(seen: tuple[Seen, ...], _: RunVariation) -> list[tuple[float, float]]:
        return [(one.value + 0.01, one.value + 0.02) for one in seen]

    monkeypatch.setattr("tuner.planner.step_times.joint_ends", slower)
    for moved in both(lab, 1.0, 1.01)[1]:
        assert moved.step_time_s.low == moved.step_time_s.value
        assert moved.step_time_s.high == pytest.approx(exp(0.02) * moved.step_time_s.value)


def test_what_the_model_adds_is_kept(lab: SimpleNamespace) -> None:
    known = known_of(lab, 1.0, 1.01)
    plain = fair(known)
    wide = {
        f.settings: replace(f, step_time_s=replace(f.step_time_s, low=0.5, high=2.0))
        for f in known.fitting
    }
    for one, moved in fair(replace(known, findings=wide)).items():
        assert moved.spread_s == plain[one].spread_s
        for end in ("low", "high"):
            before, after = (
                getattr(f.step_time_s, end) / getattr(f.spread_s, end) for f in (wide[one], moved)
            )
            assert after == pytest.approx(before)
