"""Evidence of settings: what fits and why not, and no number at assumed rates alone."""

from dataclasses import replace

from tests.unit.planner.conftest import Machine, make_ok, make_oom, make_question, make_study
from tests.unit.results.studies import MIB, gpu_question, measured_study, predicted_study
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.results.points import Evidence, failed

FOUR = Settings(micro_batch_size=4)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)


def test_there_is_no_expectation_where_rates_are_known():
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))], gpu_question())
    assert Evidence(study).expectation is None


def test_there_is_no_expectation_before_a_step_was_timed():
    crashed = Measurement(outcome=Outcome.CRASHED)
    assert Evidence(measured_study([])).expectation is None
    assert Evidence(measured_study([(FOUR, crashed)])).expectation is None


def test_the_expectation_adds_speeds_and_leaves_memory():
    study, _ = Machine(make_question()).play(make_study(max_probes=5))
    evidence = Evidence(study)
    for found in evidence.forecast.estimates.values():
        told = evidence.with_speed(found)
        assert told.step_time_s.value is not None
        assert told.step_time_s.provenance is Provenance.PREDICTED
        assert told.needed_bytes == found.needed_bytes
        assert told.fits == found.fits


def test_only_fidelities_with_results_are_told_and_dry_runs_are_none():
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))])
    assert list(Evidence(study).probed) == [Fidelity.MEASURED]
    (probe,) = study.probes
    running = replace(probe, measurement=None)
    assert Evidence(replace(study, probes=(running,))).probed == {}
    assert Evidence(predicted_study()).seen(FOUR) == ()


SHARDED_TWO = replace(SHARDED, micro_batch_size=2, gradient_accumulation_steps=2)


def seen(study, settings):
    (found,) = Evidence(study).seen(settings)
    return found


def test_settings_that_also_ran_out_do_not_fit_and_keep_what_was_timed():
    told = [(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, make_oom(900 * MIB, 800 * MIB))]
    found = seen(measured_study(told, limit_mib=800), FOUR)
    assert found.fits is False
    assert found.over_bytes == 100 * MIB
    assert found.step_time_s.value == 1.0
    assert found.outcome is Outcome.OOM


def test_what_closes_a_class_speaks_against_its_other_settings():
    wrong = Measurement(outcome=Outcome.KNOB_INACTIVE, detail="nothing was reduced")
    study = measured_study([(SHARDED, make_ok(1.0, 500 * MIB)), (SHARDED_TWO, wrong)])
    assert seen(study, SHARDED).fits is False
    assert seen(study, SHARDED).why == "settings of its layout ended as knob inactive"
    assert seen(study, SHARDED_TWO).why == "nothing was reduced"


def test_provenance_is_of_what_is_known():
    known = seen(measured_study([(FOUR, make_ok(1.0, 500 * MIB))]), FOUR)
    assert known.known_from is Provenance.MEASURED
    guessed = replace(known.step_time_s, provenance=Provenance.PREDICTED)
    assert replace(known, step_time_s=guessed).known_from is Provenance.PREDICTED
    assert replace(known, step_time_s=UNKNOWN).known_from is Provenance.MEASURED
    nothing = replace(known, step_time_s=UNKNOWN, needed_bytes=UNKNOWN, fidelity=Fidelity.EMULATED)
    assert nothing.known_from is Provenance.EMULATED


def test_of_a_failure_nothing_is_known_but_how_it_ended():
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 9")
    (probe,) = measured_study([(FOUR, crashed)]).probes
    found = failed(probe)
    assert (found.outcome, found.why, found.fits) == (Outcome.CRASHED, "signal 9", None)
    assert found.needed_bytes == found.allocated_bytes == found.step_time_s == UNKNOWN
