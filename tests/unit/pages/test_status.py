"""Where a study stands: budgets, what runs, and since when."""

from dataclasses import replace

from api.pages.study import status_of
from tests.unit.pages.made import GIB, events, ok, question, study
from tuner.core.study import ProbeState, StudyState, Terms


def test_what_runs_and_since_when() -> None:
    made = study(question(), [ok(1.0, 1, GIB), None], StudyState.RUNNING)
    found = status_of(made, events(made))
    (running,) = found.running
    assert (running.id, running.since) == (2, "2026-11-21T06:01:00.000+00:00")
    assert running.words.startswith("sharding=")
    assert found.said == "Probe #2 is running; 1 of 5 probes done."
    assert found.is_open
    assert found.ended == ""
    assert (found.budgets[0].spent, found.budgets[0].most) == (1, 5)


def test_a_start_that_no_event_tells_of_is_not_known() -> None:
    made = study(question(), [None], StudyState.RUNNING)
    (running,) = status_of(made, []).running
    assert running.since == ""


def test_budgets_of_time_are_told_where_there_are_any() -> None:
    terms = Terms(max_probes=4, wall_s=600, device_s=100)
    made = study(question(), [ok(1.0, 1, GIB)], StudyState.RUNNING, terms=terms)
    words = [one.words for one in status_of(made, []).budgets]
    assert words == ["1 of 4 probes", "12 s of 10:00 min", "1:36 min of 1:40 min of devices"]


def test_a_budget_is_never_more_than_spent() -> None:
    terms = Terms(max_probes=1, wall_s=5)
    made = study(question(), [ok(1.0, 1, GIB), ok(1.0, 1, GIB)], terms=terms)
    for budget in status_of(made, []).budgets:
        assert budget.spent <= budget.most


def test_what_is_waited_for() -> None:
    one = study(question(), [ok(1.0, 1, GIB)], StudyState.RUNNING)
    assert status_of(one, []).said.startswith("Choosing what to try next; 1 of 4")
    assert status_of(replace(one, state=StudyState.QUEUED), []).said.startswith("Waiting for a")
    spent = replace(one, terms=Terms(max_probes=1))
    assert status_of(spent, []).said.startswith("Checking the finalists; 1 of 1")
    queued = replace(one.probes[0], id=2, state=ProbeState.QUEUED, measurement=None)
    waiting = replace(one, probes=(*one.probes, queued))
    assert status_of(waiting, []).said.startswith("Probe #2 waits for its devices")


def test_the_end_and_its_reason() -> None:
    made = study(question(), [ok(1.0, 1, GIB)], reason="nothing more is worth it")
    found = status_of(made, events(made))
    assert found.said == "Done: nothing more is worth it. 1 of 4 probes."
    assert found.ended == "2026-11-21T11:33:20.000+00:00"
    assert found.running == ()
    assert status_of(made, []).ended == ""
