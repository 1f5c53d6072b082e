"""The answer in one line: as the answer says it, and the same after JSON."""

from dataclasses import replace

import pytest

from tests.unit.planner.conftest import make_ok
from tests.unit.results.studies import MIB, gpu_question, measured_study, predicted_study
from tuner.core.configuration import Settings
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.core.study import StudyState
from tuner.errors import UsageError
from tuner.explain.known import answer, best_known
from tuner.results.summary import AnswerSummary, summary_of

FOUR = Settings(micro_batch_size=4)


def measured():
    return measured_study([(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, make_ok(1.1, 500 * MIB))])


def test_it_is_what_the_answer_says():
    study = measured()
    said = answer(study)
    found = summary_of(study, said)
    assert found.settings == FOUR
    assert found.words == "sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1"
    assert found.tokens_per_s_per_gpu == said.best.tokens_per_s_per_gpu
    assert found.step_time_s == said.best.step_time_s
    assert found.allocated_gib == said.best.allocated_gib
    assert found.needed_gib == said.best.needed_gib
    assert found.limit_gib == said.best.limit_gib
    assert (found.provenance, found.per) == (Provenance.MEASURED, "rank")
    assert (found.probes, found.wall_s, found.device_s) == (2, said.wall_s, said.device_s)
    assert (found.is_forecast, found.why_none) == (False, "")


def test_a_prediction_of_what_is_to_be_measured_says_so():
    study = measured_study([], gpu_question())
    found = summary_of(study, answer(study))
    assert found.is_forecast
    assert found.provenance is Provenance.PREDICTED
    assert found.why_none == ""  # it goes on
    assert found.per == "GPU"
    done = replace(study, state=StudyState.DONE, reason="the budget is spent")
    summary = summary_of(done, answer(done))
    assert "has no measured answer" in summary.why_none
    assert (summary.state, summary.shown_state) == ("done", "not measured")
    none = summary_of(done, replace(answer(done), best=None))
    assert none.shown_state == "no answer"
    withdrawn = replace(done, state=StudyState.CANCELLED)
    assert summary_of(withdrawn, answer(withdrawn)).shown_state == "cancelled"


def test_nothing_is_known_yet():
    study = replace(predicted_study(), state=StudyState.QUEUED)
    found = summary_of(study, best_known(study))
    assert found.settings is None
    assert found.words == found.why_none == ""
    assert found.tokens_per_s_per_gpu == found.allocated_gib == found.needed_gib == UNKNOWN
    assert found.provenance is Provenance.UNKNOWN
    assert found.limit_gib == 4.0


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"no_such_knob": 1}},
        {"provenance": "guessed"},
        {"tokens_per_s_per_gpu": None},
        {"another": 1},
    ],
)
def test_what_another_version_wrote_is_not_read(changed):
    study = measured()
    values = {**summary_of(study, answer(study)).as_dict(), **changed}
    with pytest.raises((KeyError, TypeError, ValueError, UsageError)):
        AnswerSummary.from_dict(values)
