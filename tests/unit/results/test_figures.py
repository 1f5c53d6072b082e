"""Figures of one source: what fits, what does not and why, and what stands behind them."""

from dataclasses import replace

from tests.unit.planner.conftest import make_ok, make_oom
from tests.unit.results.studies import GIB, MIB, gpu_question, measured_study, predicted_study
from tuner.core.configuration import Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.core.study import Study
from tuner.planner.forecast import forecast
from tuner.results import Evidence
from tuner.results.evidence import failed

FOUR = Settings(micro_batch_size=4)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
SHARDED_TWO = replace(SHARDED, micro_batch_size=2, gradient_accumulation_steps=2)


def seen(study: Study, settings: Settings) -> Evaluation:
    (found,) = Evidence(study).seen(settings)
    return found


def test_repetitions_are_pooled() -> None:
    told = [(FOUR, make_ok(s, size * MIB)) for s, size in ((1.0, 500), (3.0, 520))]
    found = seen(measured_study(told), FOUR)
    assert found.step_time_s.value == 2.0
    assert found.needed_gib.value == 520 / 1024
    assert found.probe_ids == (1, 2)
    assert (found.fits, found.overshoot_gib, found.why) == (True, None, "")


def test_settings_that_also_ran_out_do_not_fit_and_keep_what_was_timed() -> None:
    told = [(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, make_oom(900 * MIB, 800 * MIB))]
    found = seen(measured_study(told, limit_mib=800), FOUR)
    assert found.fits is False
    assert found.overshoot_gib == 100 / 1024
    assert found.step_time_s.value == 1.0
    assert found.outcome is Outcome.OOM


def test_what_closes_a_class_speaks_against_its_other_settings() -> None:
    wrong = Measurement(outcome=Outcome.KNOB_INACTIVE, detail="nothing was reduced")
    study = measured_study([(SHARDED, make_ok(1.0, 500 * MIB)), (SHARDED_TWO, wrong)])
    assert seen(study, SHARDED).fits is False
    assert seen(study, SHARDED).why == "settings of its class ended as knob_inactive"
    assert seen(study, SHARDED_TWO).why == "nothing was reduced"


def test_what_crashed_in_a_repetition_is_said_to() -> None:
    crashed = Measurement(outcome=Outcome.CRASHED)
    found = seen(measured_study([(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, crashed)]), FOUR)
    assert (found.fits, found.outcome) == (False, Outcome.CRASHED)
    assert found.why == "it ended as crashed"


def test_provenance_is_of_what_is_known() -> None:
    known = seen(measured_study([(FOUR, make_ok(1.0, 500 * MIB))]), FOUR)
    assert known.known_from is Provenance.MEASURED
    guessed = replace(known.step_time_s, provenance=Provenance.PREDICTED)
    assert replace(known, step_time_s=guessed).known_from is Provenance.PREDICTED
    assert replace(known, step_time_s=UNKNOWN).known_from is Provenance.MEASURED
    nothing = replace(known, step_time_s=UNKNOWN, needed_bytes=UNKNOWN, fidelity=Fidelity.EMULATED)
    assert nothing.known_from is Provenance.EMULATED


def test_a_prediction_tells_why_it_does_not_fit() -> None:
    study = predicted_study(gpu_question(), memory_limit_bytes=200 * MIB)
    known = forecast(study)
    found = known.estimates[FOUR]
    assert found.fits is False
    assert found.outcome is None
    assert found.overshoot_gib is not None
    assert found.needed_gib.value is not None
    assert abs(found.needed_gib.value - 200 / 1024 - found.overshoot_gib) * GIB < 2
    assert found.why.startswith("needs")


def test_of_a_failure_nothing_is_known_but_how_it_ended() -> None:
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 9")
    (probe,) = measured_study([(FOUR, crashed)]).probes
    found = failed(probe)
    assert (found.outcome, found.why, found.fits) == (Outcome.CRASHED, "signal 9", None)
    assert found.needed_bytes == found.allocated_bytes == found.step_time_s == UNKNOWN
