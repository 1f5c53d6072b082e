"""What an asking's budget leaves of a worker's time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from tuner.measurement import Fidelity, Measurement, Outcome
from tuner.settings import Settings
from tuner.study import Probe, ProbeRequest, ProbeState, Question, Study, StudyState, Terms
from workers.time_left import TimeLeft


@pytest.fixture
def study(question: Question) -> Study:
    """Asked half a minute ago; a probe held its two devices for 2 s."""
    ago = (datetime.now(UTC) - timedelta(seconds=30)).isoformat()
    probe = Probe(
        id=1,
        request=ProbeRequest(settings=Settings(), fidelity=Fidelity.MEASURED),
        state=ProbeState.DONE,
        measurement=Measurement(outcome=Outcome.OK, wall_s=2.0, device_s=4.0),
    )
    return Study(
        id="st-1",
        question=question,
        terms=Terms(),
        state=StudyState.RUNNING,
        probes=(probe,),
        asked_at=ago,
    )


def test_without_a_budget_there_is_no_end(study: Study) -> None:
    left = TimeLeft(study, 1e9)
    assert (left.seconds, left.of_running_s, left.why_spent) == (inf, inf, "")


def test_what_a_worker_did_for_this_asking_counts(study: Study) -> None:
    """Whatever its clock says, which may be minutes away from the database's."""
    study = replace(study, terms=Terms(wall_s=100.0))
    for minutes in (-5, 5):
        asked = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
        assert TimeLeft(replace(study, asked_at=asked), 30.0).seconds == 70
    assert TimeLeft(study, 10.0).seconds == TimeLeft(study, 10.0).of_running_s == 90
    assert TimeLeft(study, 10.0).why_spent == ""
    study = replace(study, terms=Terms(wall_s=10.0))
    assert TimeLeft(study, 10.0).why_spent == "the budget of 10 s is spent"


def test_a_probe_may_take_what_is_left_of_its_devices_time(study: Study) -> None:
    left = TimeLeft(replace(study, terms=Terms(wall_s=100.0, device_s=10.0)), 10.0)
    assert (left.seconds, left.of_running_s, left.why_spent) == (90, 3, "")
    left = TimeLeft(replace(study, terms=Terms(device_s=4.0)), 10.0)
    assert left.why_spent == "the budget of 4 device-seconds is spent"


def test_probes_that_were_asked_for_have_no_budget(study: Study) -> None:
    study = replace(study, terms=Terms(wall_s=1.0, device_s=1.0))
    left = TimeLeft(study, 10.0, limited=False)
    assert (left.seconds, left.of_running_s, left.why_spent) == (inf, inf, "")


def test_what_probes_have_held_so_far_is_shared_by_those_that_run(study: Study) -> None:
    study = replace(study, terms=Terms(wall_s=100.0, device_s=24.0))  # 10 s of both devices
    left = TimeLeft(study, 10.0, [1.0, 3.0])
    assert (left.of_running_s, left.why_spent) == (3, "")
    hurried = replace(study, terms=Terms(wall_s=12.0, device_s=24.0))
    assert TimeLeft(hurried, 10.0, [1.0, 3.0]).of_running_s == 2
    left = TimeLeft(study, 10.0, [4.0, 6.0])
    assert left.of_running_s == 0
    assert left.why_spent == "the budget of 24 device-seconds is spent"


def test_a_dry_run_holds_no_device(study: Study) -> None:
    predicted = Terms(fidelity=Fidelity.PREDICTED, device_s=1.0)
    left = TimeLeft(replace(study, terms=predicted), 10.0, [5.0])
    assert (left.of_running_s, left.why_spent) == (inf, "")
