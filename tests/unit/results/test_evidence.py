"""What is known of a study: each part once, and no number at assumed rates alone."""

from dataclasses import replace

from tests.unit.planner.conftest import Machine, make_ok, make_question, make_study
from tests.unit.results.studies import MIB, gpu_question, measured_study, predicted_study
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.planner.forecast import forecast
from tuner.results import Evidence

FOUR = Settings(micro_batch_size=4)


def test_the_forecast_is_the_planners() -> None:
    study = predicted_study()
    assert Evidence(study).forecast.estimates == forecast(study).estimates


def test_there_is_no_outlook_where_rates_are_known() -> None:
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))], gpu_question())
    assert Evidence(study).outlook is None


def test_there_is_no_outlook_before_a_step_was_timed() -> None:
    crashed = Measurement(outcome=Outcome.CRASHED)
    assert Evidence(measured_study([])).outlook is None
    assert Evidence(measured_study([(FOUR, crashed)])).outlook is None


def test_the_outlook_adds_speeds_and_leaves_memory() -> None:
    study, _ = Machine(make_question()).play(make_study(max_probes=5))
    evidence = Evidence(study)
    for found in evidence.forecast.estimates.values():
        told = evidence.with_speed(found)
        assert told.step_time_s.value is not None
        assert told.step_time_s.provenance is Provenance.PREDICTED
        assert told.needed_bytes == found.needed_bytes
        assert told.fits == found.fits


def test_speeds_that_are_known_stay() -> None:
    evidence = Evidence(predicted_study())
    for found in evidence.forecast.estimates.values():
        assert evidence.with_speed(found) is found


def test_only_fidelities_with_results_are_told_and_dry_runs_are_none() -> None:
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))])
    assert list(Evidence(study).probed) == [Fidelity.MEASURED]
    (probe,) = study.probes
    running = replace(probe, measurement=None)
    assert Evidence(replace(study, probes=(running,))).probed == {}
    assert Evidence(predicted_study()).seen(FOUR) == ()
