"""What is made of the probes of earlier studies; the studies are made by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Emulation, Fidelity, Measurement, Outcome
from tuner.core.study import Probe, Question, Study
from tuner.cost.calibration import Calibration
from tuner.planner import next_probe
from tuner.planner.prior import RUNS, predicted
from tuner.planner.similar import found_in, past_of

ONE = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2)
TWO = replace(ONE, micro_batch_size=4, gradient_accumulation_steps=1)

Numbered = tuple[Settings, Measurement]


@pytest.fixture
def study(lab: SimpleNamespace) -> Callable[..., Study]:
    """A study with probes: ``study((ONE, lab.ok(0.1, 100, count=2)), ...)``."""

    def make(*found: Numbered, repetitions: Sequence[int] = ()) -> Study:
        numbers = repetitions or [0] * len(found)
        probes = [
            lab.probe(i, settings, measurement, repetition=repetition)
            for i, ((settings, measurement), repetition) in enumerate(
                zip(found, numbers, strict=True), start=1
            )
        ]
        made: Study = lab.study(lab.question("8xh100-80gb", batch=32), probes=probes)
        return made

    return make


def at(study: Study, fidelity: Fidelity) -> tuple[Probe, ...]:
    """The study's probes as if they had been of a fidelity."""
    return tuple(replace(p, request=replace(p.request, fidelity=fidelity)) for p in study.probes)


def test_a_study_without_a_past_has_none(lab: SimpleNamespace) -> None:
    assert past_of(lab.study()) is None


def test_excess_is_what_was_seen_over_what_is_predicted(
    lab: SimpleNamespace, study: Callable[..., Study]
) -> None:
    one = past_of(replace(study(), past=(study((ONE, lab.ok(1.0, 2**30, count=2))),)))
    two = past_of(replace(study(), past=(study((ONE, lab.ok(1.5, 2**31, count=2))),)))
    assert one is not None
    assert two is not None
    assert two.log_excess[0] - one.log_excess[0] == pytest.approx(log(1.5))
    assert one.ran.tolist() == [1.0]
    assert one.expected.tolist() == [RUNS]


def test_a_past_that_is_read_anew_is_not_predicted_anew(
    lab: SimpleNamespace, study: Callable[..., Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def counted(question: Question, settings: Settings, calibration: Calibration | None) -> Any:
        asked.append(settings)
        return predicted(question, settings, calibration)

    monkeypatch.setattr("tuner.planner.similar.predicted", counted)
    earlier = study((ONE, lab.ok(1.0, 100, count=2)), (TWO, lab.ok(1.0, 100)))
    question = replace(
        earlier.question, workload=replace(earlier.question.workload, sequence_length=136)
    )
    for _ in range(2):
        past = (replace(earlier, question=replace(question)),)
        next_probe(replace(lab.study(lab.question("8xh100-80gb", batch=64)), past=past))
    assert asked == [ONE, TWO]


def test_studies_are_told_apart_and_settings_pooled(
    lab: SimpleNamespace, study: Callable[..., Study]
) -> None:
    first = study(
        (ONE, lab.ok(1.0, 100, count=2)),
        (ONE, lab.ok(2.0, 300, count=2)),
        (TWO, lab.ok(1.0, 100)),
        repetitions=(0, 1, 0),
    )
    past = past_of(replace(study(), past=(first, study((TWO, lab.ok(1.0, 100))))))
    assert past is not None
    assert past.study.tolist() == [0.0, 0.0, 1.0]
    assert past.features.shape[0] == past.workload.shape[0] == past.size == 3
    found = {one.settings: one for one in found_in(first)}
    assert 1.0 <= (found[ONE].seconds or 0.0) <= 2.0


def test_what_ran_out_of_memory_says_nothing(
    lab: SimpleNamespace, study: Callable[..., Study]
) -> None:
    assert found_in(study((ONE, lab.oom(2**20, 2**20)), (TWO, lab.oom(2**45, 2**45)))) == ()


def test_what_broke_was_expected_to_run(study: Callable[..., Study]) -> None:
    earlier = study((ONE, Measurement(outcome=Outcome.NON_FINITE)))
    past = past_of(replace(study(), past=(earlier,)))
    assert past is not None
    assert past.ran.tolist() == [0.0]
    assert past.expected.tolist() == [RUNS]


@pytest.mark.parametrize(
    "outcome", [Outcome.WORKER_LOST, Outcome.DEVICE_LOST, Outcome.INVALID, Outcome.TIMEOUT]
)
def test_other_outcomes_teach_nothing(outcome: Outcome, study: Callable[..., Study]) -> None:
    assert found_in(study((ONE, Measurement(outcome=outcome)))) == ()


def test_what_was_measured_goes_before_what_was_emulated(
    lab: SimpleNamespace, study: Callable[..., Study]
) -> None:
    emulation = Emulation(compute_s={2: (3.0,)}, exposed_s={}, collectives={})
    guessed = replace(lab.ok(3.0, 100, count=2), emulation=emulation)
    emulated = at(study((ONE, guessed), (TWO, lab.ok(3.0, 100))), Fidelity.EMULATED)
    measured = replace(study((ONE, lab.ok(1.0, 100, count=2))).probes[0], id=3)
    found = {
        one.settings: one.seconds
        for one in found_in(replace(study(), probes=(*emulated, measured)))
    }
    assert found == {ONE: pytest.approx(1.0), TWO: pytest.approx(3.0)}


def test_dry_runs_are_not_of_the_past(lab: SimpleNamespace, study: Callable[..., Study]) -> None:
    made = study((ONE, lab.ok(1.0, 100, count=2)))
    assert found_in(replace(made, probes=at(made, Fidelity.PREDICTED))) == ()


def test_predictions_are_of_the_study_s_own_question(
    lab: SimpleNamespace, study: Callable[..., Study]
) -> None:
    """The same seconds exceed what is predicted of a smaller batch by more."""
    whole = study((ONE, lab.ok(1.0, 100, count=2)))
    small = replace(whole, question=lab.question("8xh100-80gb", batch=16))
    small = replace(small, probes=study((TWO, lab.ok(1.0, 100))).probes)
    past = past_of(replace(study(), past=(whole, small)))
    assert past is not None
    assert 1.2 < exp(past.log_excess[1] - past.log_excess[0]) < 4
    assert past.workload[0].tolist() != past.workload[1].tolist()
