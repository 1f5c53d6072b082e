"""Predicted answers that other studies correct; what these measured is planted."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import pytest

from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Probe, Question, Study
from tuner.cost.prediction import Prediction, predict
from tuner.explain.known import answer
from tuner.planner.forecast import forecast
from tuner.planner.prior import predicted
from tuner.planner.similar import NEAR, corrected
from tuner.space import enumerate_space

CLUSTER = "8xh100-80gb"

Slower = Callable[[Settings], float]
Earlier = Callable[..., Study]


def prediction_of(question: Question, settings: Settings) -> Prediction:
    return predict(question.workload, question.cluster, question.framework, settings)


@pytest.fixture
def earlier(lab: SimpleNamespace) -> Earlier:
    """A study of another batch, some settings of which took so many times what is predicted."""

    def make(slower: Slower, *, batch: int = 64, number: int = 1, most: int = 12) -> Study:
        question = lab.question(CLUSTER, batch=batch)
        legal = list(enumerate_space(question).legal)
        random.Random(number).shuffle(legal)
        probes: list[Probe] = []
        for settings in legal[:most]:
            seconds = prediction_of(question, settings).step_time_s.value
            assert seconds is not None
            count = settings.gradient_accumulation_steps
            took = lab.ok(slower(settings) * seconds, 2**30, count=count)
            probes.append(lab.probe(len(probes) + 1, settings, took))
        study: Study = lab.study(question, probes=probes)
        return replace(study, id=f"st-{number:012d}")

    return make


@pytest.fixture
def asked(lab: SimpleNamespace) -> Study:
    """A predicted study of a global batch of 32."""
    study: Study = lab.study(
        lab.question(CLUSTER, batch=32), fidelity=Fidelity.PREDICTED, memory_limit_bytes=None
    )
    return study


def told(found: Suggestion, words: str) -> list[str]:
    return [sentence for sentence in found.explanation if words in sentence]


def plain(study: Study) -> Mapping[Settings, float]:
    return {s: e.seconds for s, e in forecast(replace(study, past=())).estimates.items()}


def test_without_a_past_all_is_predicted(asked: Study) -> None:
    found = answer(asked)
    assert found.best is not None
    assert found.best.step_time_s.provenance is Provenance.PREDICTED
    assert not told(found, "transferred")


def test_speeds_are_corrected_by_what_others_measured(asked: Study, earlier: Earlier) -> None:
    past = tuple(earlier(lambda _: 1.4, batch=64 * n, number=n) for n in (1, 2))
    before, found = plain(asked), forecast(replace(asked, past=past))
    for settings, estimate in found.estimates.items():
        assert 1.27 < estimate.seconds / before[settings] < 1.42  # a little is left to doubt
        assert estimate.factor == pytest.approx(estimate.seconds / before[settings])
    assert any(e.step_time_s.provenance is Provenance.TRANSFERRED for e in found.estimates.values())


def test_the_speed_is_transferred_and_the_memory_predicted(asked: Study, earlier: Earlier) -> None:
    before = answer(asked)
    found = answer(replace(asked, past=(earlier(lambda _: 1.4, most=40),)))
    assert found.best is not None
    assert before.best is not None
    assert found.best.step_time_s.provenance is Provenance.TRANSFERRED
    assert found.best.tokens_per_s_per_gpu.provenance is Provenance.TRANSFERRED
    assert found.best.allocated_gib == before.best.allocated_gib
    assert found.best.allocated_gib.provenance is Provenance.PREDICTED
    assert found.best.provenance is Provenance.PREDICTED  # the weaker of the two
    assert '"measured"' not in json.dumps({**found.as_dict(), "facts": []})


def test_the_studies_are_named_with_date_and_versions(asked: Study, earlier: Earlier) -> None:
    found = answer(replace(asked, past=(earlier(lambda _: 1.4, number=7, most=40),)))
    (sentence,) = told(found, "are transferred")
    assert "st-000000000007 (tiny on 8xh100-80gb, global batch 64, sequence 128" in sentence
    assert "40 settings measured on 2026-01-01 with torch 2.13.0" in sentence
    (near,) = told(found, "% alike, workload included")
    assert near.startswith("No step of this question was timed.")
    assert not told(found, "both are arithmetic")
    assert not told(found, "every time are arithmetic")


def test_speed_and_step_time_agree(asked: Study, earlier: Earlier) -> None:
    best = answer(replace(asked, past=(earlier(lambda _: 0.7, most=40),))).best
    assert best is not None
    tokens = 32 * 128 / 8
    step, speed = best.step_time_s, best.tokens_per_s_per_gpu
    assert step.value is not None
    assert step.low is not None
    assert step.high is not None
    assert speed.value == pytest.approx(tokens / step.value)
    assert speed.low == pytest.approx(tokens / step.high)
    assert speed.high == pytest.approx(tokens / step.low)


def test_studies_that_agree_narrow_the_interval(asked: Study, earlier: Earlier) -> None:
    def width(*past: Study) -> float:
        best = answer(replace(asked, past=past)).best
        assert best is not None
        assert best.step_time_s.low
        assert best.step_time_s.high
        return best.step_time_s.high / best.step_time_s.low

    alike = [earlier(lambda _: 1.4, batch=64 * n, number=n) for n in (1, 2, 4)]
    apart = [
        earlier(lambda _, f=f: f, batch=64 * n, number=n) for n, f in ((1, 0.7), (2, 1.4), (4, 2.8))
    ]
    assert width(*alike) < width(alike[0]) < 3
    assert width(*alike) < width(*apart)


@pytest.mark.long
def test_intervals_cover_what_they_promise(lab: SimpleNamespace, earlier: Earlier) -> None:
    """Of 60 questions, each off by luck of its own beside what all have in common."""
    inside = total = 0
    for trial in range(60):
        luck = random.Random(trial)
        common, own = luck.gauss(0, 0.3), [luck.gauss(0, 0.15) for _ in range(4)]
        single = random.Random(f"{trial} settings")
        past = tuple(
            earlier(
                lambda _, c=common + own[n], draw=single: 2.718 ** (c + draw.gauss(0, 0.1)),
                batch=32 * 2**n,
                number=100 * trial + n,
                most=8,
            )
            for n in (1, 2, 3)
        )
        question = lab.question(CLUSTER, batch=32)
        legal = enumerate_space(question).legal
        said = corrected(replace(lab.study(question), past=past), legal)
        for settings in single.sample(list(legal), 5):
            truth = 2.718 ** (common + own[0] + single.gauss(0, 0.1))
            inside += said[settings].low <= truth <= said[settings].high
            total += 1
    assert 0.7 <= inside / total <= 0.9


def test_a_shared_shape_changes_the_order(asked: Study, earlier: Earlier) -> None:
    """Where what looks fastest was slow in other studies, something else leads."""
    first = answer(asked).best
    assert first is not None
    kind = first.settings.sharding
    past = tuple(
        earlier(lambda s: 3.0 if s.sharding is kind else 1.0, batch=64 * n, number=n, most=20)
        for n in (1, 2)
    )
    found = answer(replace(asked, past=past)).best
    assert found is not None
    assert found.settings.sharding is not kind


def test_far_workloads_change_nothing(asked: Study, earlier: Earlier) -> None:
    past = (earlier(lambda _: 3.0, batch=32 * 2**8),)
    assert forecast(replace(asked, past=past)).estimates == forecast(asked).estimates
    assert answer(replace(asked, past=past)).explanation == answer(asked).explanation


def test_settings_far_from_all_that_ran_stay_predicted(asked: Study, earlier: Earlier) -> None:
    found = forecast(replace(asked, past=(earlier(lambda _: 1.4, most=1),))).estimates
    near = [e for e in found.values() if e.near >= NEAR]
    far = [e for e in found.values() if e.near < NEAR]
    assert near
    assert far
    assert {e.step_time_s.provenance for e in near} == {Provenance.TRANSFERRED}
    assert {e.step_time_s.provenance for e in far} == {Provenance.PREDICTED}
    assert all(e.factor > 1.1 for e in far)  # or those that ran would seem slower than they are
    said = answer(replace(asked, past=(earlier(lambda _: 1.4, most=1),)))
    assert told(said, "The other times are corrected by these too, and stay predicted")


def test_own_measurements_go_before_those_of_others(
    lab: SimpleNamespace, asked: Study, earlier: Earlier
) -> None:
    settings = enumerate_space(asked.question).legal[0]
    seconds = plain(asked)[settings]
    count = settings.gradient_accumulation_steps
    own = lab.probe(1, settings, lab.ok(0.5 * seconds, 2**30, count=count))
    known = forecast(replace(asked, probes=(own,), past=(earlier(lambda _: 3.0),)))
    assert known.estimates[settings].seconds == pytest.approx(0.5 * seconds)
    assert known.estimates[settings].step_time_s.provenance is Provenance.PREDICTED


def test_studies_that_timed_nothing_change_nothing(
    lab: SimpleNamespace, asked: Study, earlier: Earlier
) -> None:
    study = earlier(lambda _: 1.4, most=2)
    failed = replace(lab.oom(2**30, 2**30), outcome=Outcome.OOM)
    past = (replace(study, probes=tuple(replace(p, measurement=failed) for p in study.probes)),)
    assert answer(replace(asked, past=past)).explanation == answer(asked).explanation


def test_the_order_of_the_past_does_not_matter(asked: Study, earlier: Earlier) -> None:
    past = [earlier(lambda _, n=n: 1 + 0.1 * n, batch=64 * n, number=n) for n in (1, 2)]
    one = forecast(replace(asked, past=tuple(past))).estimates
    other = forecast(replace(asked, past=tuple(reversed(past)))).estimates
    for settings, estimate in one.items():
        assert estimate.seconds == pytest.approx(other[settings].seconds)


def test_what_stalls_does_not_pull_the_others_along(asked: Study, earlier: Earlier) -> None:
    def slower(stalled: float) -> Slower:
        draw = random.Random(1)
        return lambda _: 1.4 * (stalled if draw.random() < 0.2 else 1.0) * draw.uniform(0.95, 1.05)

    def typical(factor: float) -> float:
        past = tuple(earlier(slower(factor), batch=64 * n, number=n) for n in (1, 2))
        found = corrected(replace(asked, past=past), enumerate_space(asked.question).legal)
        return median(one.factor for one in found.values())

    clean = typical(1.0)
    assert 1.2 < clean < 1.42
    assert typical(8.0) == pytest.approx(clean, rel=0.15)  # their mean is 2.4 times as much


@pytest.fixture
def on_cpus(lab: SimpleNamespace) -> tuple[Study, Earlier]:
    """A question of CPU ranks that were not calibrated, and studies of another batch: some settings
    took so many times what is predicted at assumed rates."""

    def make(slower: Slower, *, batch: int = 16, number: int = 1, most: int = 8) -> Study:
        question = lab.question("cpu:2", batch=batch)
        legal = list(enumerate_space(question).legal)
        random.Random(number).shuffle(legal)
        probes = []
        for settings in legal[:most]:
            seconds = predicted(question, settings, None)[1].value
            assert seconds is not None
            count = settings.gradient_accumulation_steps
            took = lab.ok(slower(settings) * seconds, 2**28, count=count)
            probes.append(lab.probe(len(probes) + 1, settings, took))
        study: Study = lab.study(question, probes=probes)
        return replace(study, id=f"st-{number:012d}")

    return lab.study(lab.question("cpu:2", batch=8), fidelity=Fidelity.PREDICTED), make


@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0])
def test_where_no_rate_is_known_other_studies_tell_the_speed(
    on_cpus: tuple[Study, Earlier], factor: float
) -> None:
    asked, earlier = on_cpus
    assert answer(asked).best is None
    study = replace(asked, past=(earlier(lambda _: factor),))
    found = answer(study)
    assert found.best is not None
    assert found.best.step_time_s.provenance is Provenance.TRANSFERRED
    assert found.best.provenance is Provenance.PREDICTED  # as its memory is
    truth = predicted(study.question, found.best.settings, None)[1].value
    step = found.best.step_time_s
    assert truth is not None
    assert step.value == pytest.approx(factor * truth, rel=0.35)
    assert step.low is not None
    assert step.high is not None
    assert step.low < factor * truth < step.high
    assert any("what arithmetic at assumed rates says" in line for line in found.explanation)


def test_nothing_is_shown_at_assumed_rates_alone(on_cpus: tuple[Study, Earlier]) -> None:
    asked, earlier = on_cpus
    far = replace(asked, past=(earlier(lambda _: 2.0, batch=4096, most=3),))
    found = answer(far)
    assert found.best is None
    assert all(one.step_time_s.value is None for one in found.alternatives)
    assert not any("assumed rates" in line for line in found.explanation)


def test_what_all_are_off_by_narrows_with_the_second_study(
    on_cpus: tuple[Study, Earlier],
) -> None:
    """Of one study it is not known what is the machine's, and what the study's own."""
    asked, earlier = on_cpus

    def width(*past: Study) -> float:
        best = answer(replace(asked, past=past)).best
        assert best is not None
        step = best.step_time_s
        assert step.low is not None
        assert step.high is not None
        return step.high / step.low

    one, two = earlier(lambda _: 3.0), earlier(lambda _: 3.1, batch=32, number=2)
    assert 1.2 < width(one, two) < width(one) < 6
