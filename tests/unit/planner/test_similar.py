"""Other studies correct predictions; what these measured is planted."""

import json
import random
from dataclasses import replace
from math import exp, log

import pytest

from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Emulation, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.cost.prediction import predict
from tuner.explain.known import answer
from tuner.planner import next_probe
from tuner.planner.forecast import Asked, forecast
from tuner.planner.prior import RUNS, predicted
from tuner.planner.similar import NEAR, corrected_by, found_in, past_of
from tuner.search.trials import settings_features, workload_features
from tuner.space import enumerate_space

ONE = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2)
TWO = replace(ONE, micro_batch_size=4, gradient_accumulation_steps=1)


def trials_of_past(study):
    return past_of(study.past, study.calibration)


@pytest.fixture
def study(lab):
    """A study with probes: ``study((ONE, lab.ok(0.1, 100, count=2)), ...)``."""

    def make(*found, repetitions=()):
        numbers = repetitions or [0] * len(found)
        probes = [
            lab.probe(i, settings, measurement, repetition=repetition)
            for i, ((settings, measurement), repetition) in enumerate(
                zip(found, numbers, strict=True), start=1
            )
        ]
        return lab.study(lab.question("8xh100-80gb", batch=32), probes=probes)

    return make


def at(study, fidelity):
    """The study's probes as if they had been of a fidelity."""
    return tuple(replace(p, request=replace(p.request, fidelity=fidelity)) for p in study.probes)


def test_excess_is_what_was_seen_over_what_is_predicted(lab, study):
    one = trials_of_past(replace(study(), past=(study((ONE, lab.ok(1.0, 2**30, count=2))),)))
    two = trials_of_past(replace(study(), past=(study((ONE, lab.ok(1.5, 2**31, count=2))),)))
    assert two.log_excess[0] - one.log_excess[0] == pytest.approx(log(1.5))
    assert one.ran.tolist() == [1.0]
    assert one.expected.tolist() == [RUNS]


def test_a_past_that_is_read_anew_is_not_predicted_anew(lab, study, monkeypatch):
    asked = []

    def counted(workload, *given, **options):
        if workload.sequence_length == 136:
            asked.append(given[2])
        return predict(workload, *given, **options)

    monkeypatch.setattr("tuner.planner.prior.predict", counted)
    earlier = study((ONE, lab.ok(1.0, 100, count=2)), (TWO, lab.ok(1.0, 100)))
    question = replace(
        earlier.question, workload=replace(earlier.question.workload, sequence_length=136)
    )
    for _ in range(2):
        past = (replace(earlier, question=replace(question)),)
        next_probe(replace(lab.study(lab.question("8xh100-80gb", batch=64)), past=past))
    assert asked == [ONE, TWO]


def test_studies_are_told_apart_and_settings_pooled(lab, study):
    first = study(
        (ONE, lab.ok(1.0, 100, count=2)),
        (ONE, lab.ok(2.0, 300, count=2)),
        (TWO, lab.ok(1.0, 100)),
        repetitions=(0, 1, 0),
    )
    past = trials_of_past(replace(study(), past=(first, study((TWO, lab.ok(1.0, 100))))))
    assert past.study.tolist() == [0.0, 0.0, 1.0]
    assert past.features.shape[0] == past.workload.shape[0] == past.size == 3
    found = {one.settings: one for one in found_in(first)}
    assert 1.0 <= (found[ONE].seconds or 0.0) <= 2.0


def test_what_ran_out_of_memory_says_nothing(lab, study):
    assert found_in(study((ONE, lab.oom(2**20, 2**20)), (TWO, lab.oom(2**45, 2**45)))) == ()


@pytest.mark.parametrize(
    "outcome", [Outcome.WORKER_LOST, Outcome.DEVICE_LOST, Outcome.INVALID, Outcome.TIMEOUT]
)
def test_other_outcomes_teach_nothing(outcome, study):
    assert found_in(study((ONE, Measurement(outcome=outcome)))) == ()


def test_what_was_measured_goes_before_what_was_emulated(lab, study):
    emulation = Emulation(compute_s={2: (3.0,)}, exposed_s={}, collectives={})
    guessed = replace(lab.ok(3.0, 100, count=2), emulation=emulation)
    emulated = at(study((ONE, guessed), (TWO, lab.ok(3.0, 100))), Fidelity.EMULATED)
    measured = replace(study((ONE, lab.ok(1.0, 100, count=2))).probes[0], id=3)
    found = {
        one.settings: one.seconds
        for one in found_in(replace(study(), probes=(*emulated, measured)))
    }
    assert found == {ONE: pytest.approx(1.0), TWO: pytest.approx(3.0)}


def test_predictions_are_of_the_study_s_own_question(lab, study):
    """The same seconds exceed what is predicted of a smaller batch by more."""
    whole = study((ONE, lab.ok(1.0, 100, count=2)))
    small = replace(whole, question=lab.question("8xh100-80gb", batch=16))
    small = replace(small, probes=study((TWO, lab.ok(1.0, 100))).probes)
    past = trials_of_past(replace(study(), past=(whole, small)))
    assert 1.2 < exp(past.log_excess[1] - past.log_excess[0]) < 4
    assert past.workload[0].tolist() != past.workload[1].tolist()


CLUSTER = "8xh100-80gb"


@pytest.fixture
def earlier(lab):
    """A study of another batch, some settings of which took so many times what is predicted, at
    assumed rates where none are known."""

    def make(slower, *, cluster=CLUSTER, batch=64, number=1, most=12):
        question = lab.question(cluster, batch=batch)
        legal = list(enumerate_space(question).legal)
        random.Random(number).shuffle(legal)
        probes = []
        for settings in legal[:most]:
            seconds = predicted(Asked(question, None), settings)[1][0].value
            count = settings.gradient_accumulation_steps
            took = lab.ok(slower(settings) * seconds, 2**28, count=count)
            probes.append(lab.probe(len(probes) + 1, settings, took))
        return replace(lab.study(question, probes=probes), id=f"st-{number:012d}")

    return make


@pytest.fixture
def asked(lab):
    """A predicted study of a global batch of 32."""
    return lab.study(
        lab.question(CLUSTER, batch=32), fidelity=Fidelity.PREDICTED, memory_limit_bytes=None
    )


def test_speeds_are_corrected_by_what_others_measured(asked, earlier):
    past = tuple(earlier(lambda _: 1.4, batch=64 * n, number=n) for n in (1, 2))
    before, found = forecast(asked).estimates, forecast(replace(asked, past=past))
    for settings, estimate in found.estimates.items():
        ratio = estimate.seconds / before[settings].seconds
        assert 1.27 < ratio < 1.42  # a little is left to doubt
        assert estimate.factor == pytest.approx(ratio)
    assert any(e.step_time_s.provenance is Provenance.TRANSFERRED for e in found.estimates.values())


def test_the_speed_is_transferred_and_the_memory_predicted(asked, earlier):
    before = answer(asked)
    found = answer(replace(asked, past=(earlier(lambda _: 1.4, most=40),)))
    assert found.best.step_time_s.provenance is Provenance.TRANSFERRED
    assert found.best.tokens_per_s_per_gpu.provenance is Provenance.TRANSFERRED
    assert found.best.allocated_gib == before.best.allocated_gib
    assert found.best.allocated_gib.provenance is Provenance.PREDICTED
    assert found.best.provenance is Provenance.PREDICTED  # the weaker of the two
    assert '"measured"' not in json.dumps({**found.as_dict(), "facts": []})


def test_studies_that_agree_narrow_the_interval(asked, earlier):
    def width(*past):
        best = answer(replace(asked, past=past)).best
        return best.step_time_s.high / best.step_time_s.low

    alike = [earlier(lambda _: 1.4, batch=64 * n, number=n) for n in (1, 2, 4)]
    apart = [
        earlier(lambda _, f=f: f, batch=64 * n, number=n) for n, f in ((1, 0.7), (2, 1.4), (4, 2.8))
    ]
    assert width(*alike) < width(alike[0]) < 3
    assert width(*alike) < width(*apart)


@pytest.mark.long
def test_intervals_cover_what_they_promise(lab, earlier):
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
        found = corrected_by(
            past_of(past, None),
            workload_features(question.workload, question.cluster),
            settings_features(legal, question.workload, question.cluster),
        )
        said = dict(zip(legal, found, strict=True))
        for settings in single.sample(list(legal), 5):
            truth = 2.718 ** (common + own[0] + single.gauss(0, 0.1))
            inside += said[settings].low <= truth <= said[settings].high
            total += 1
    assert 0.7 <= inside / total <= 0.9


def test_far_workloads_change_nothing(asked, earlier):
    past = (earlier(lambda _: 3.0, batch=32 * 2**8),)
    assert forecast(replace(asked, past=past)).estimates == forecast(asked).estimates
    assert answer(replace(asked, past=past)).explanation == answer(asked).explanation


def test_settings_far_from_all_that_ran_stay_predicted(asked, earlier):
    found = forecast(replace(asked, past=(earlier(lambda _: 1.4, most=1),))).estimates
    near = [e for e in found.values() if e.near >= NEAR]
    far = [e for e in found.values() if e.near < NEAR]
    assert near
    assert far
    assert {e.step_time_s.provenance for e in near} == {Provenance.TRANSFERRED}
    assert {e.step_time_s.provenance for e in far} == {Provenance.PREDICTED}
    assert all(e.factor > 1.1 for e in far)  # or those that ran would seem slower than they are
    said = answer(replace(asked, past=(earlier(lambda _: 1.4, most=1),)))
    words = "The other times are corrected by these too, and stay predicted"
    assert any(words in sentence for sentence in said.explanation)


@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0])
def test_where_no_rate_is_known_other_studies_tell_the_speed(lab, earlier, factor):
    asked = lab.study(lab.question("cpu:2", batch=8), fidelity=Fidelity.PREDICTED)
    assert answer(asked).best is None
    past = earlier(lambda _: factor, cluster="cpu:2", batch=16, most=8)
    study = replace(asked, past=(past,))
    found = answer(study)
    assert found.best.step_time_s.provenance is Provenance.TRANSFERRED
    assert found.best.provenance is Provenance.PREDICTED  # as its memory is
    truth = predicted(Asked(study.question, None), found.best.settings)[1][0].value
    step = found.best.step_time_s
    assert step.value == pytest.approx(factor * truth, rel=0.35)
    assert step.low < factor * truth < step.high
    assert any("what arithmetic at assumed rates says" in line for line in found.explanation)
