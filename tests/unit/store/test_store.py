"""Studies, planned probes and events: every test runs on each kind of database."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tests.unit.store.conftest import ELSEWHERE, claimed, enter
from tuner.core.measurement import (
    Fidelity,
    Measurement,
    Outcome,
)
from tuner.core.study import STUDY_TRANSITIONS, Limits, ProbeState, StudyState
from tuner.errors import StoreError
from tuner.planner.spending import probes_of_request
from tuner.store import EventKind, open_store, study_id
from tuner.store.access import Action, Audit, AuditNote
from tuner.store.tables import AttemptRow, EventRow, MeasurementRow, ProbeRow, StudyRow, clock


def test_a_new_question_makes_a_queued_study(store, question):
    study = store.ask(question, Limits(max_probes=7))
    assert study.id == study_id(question) == f"st-{question.identity[:12]}"
    assert (study.state, study.reason, study.probes_before) == (StudyState.QUEUED, "", 0)
    assert study.question == question
    assert study.limits == Limits(max_probes=7)
    assert study.created_at == study.asked_at
    assert study.created_at.endswith("Z")
    assert 0 <= study.seed < 2**31
    assert store.find(question) == store.study(study.id) == study


def test_asking_again_keeps_what_was_learned_and_counts_it(store, claim, question, found):
    assert store.record(claim, found)
    assert store.move(claim.study_id, StudyState.DONE, "no gain")
    before = store.study(claim.study_id)
    limits = Limits(max_probes=3, memory_limit_bytes=2**30)
    again = store.ask(question, limits)
    assert (again.state, again.reason, again.limits) == (StudyState.QUEUED, "", limits)
    assert again.probes_before == 1
    assert again.probes == before.probes
    assert (again.seed, again.created_at) == (before.seed, before.created_at)
    assert again.asked_at >= before.asked_at
    assert again.revision > before.revision


def test_asking_again_leaves_a_running_study_to_its_live_worker(store, claim, question):
    assert store.ask(question, Limits(max_probes=3)).state is StudyState.RUNNING
    assert store.beat(claim)


def test_asking_again_puts_back_a_study_whose_worker_is_dead(store, study, question, dead):
    assert store.move(study.id, StudyState.RUNNING, worker=dead)
    again = store.ask(question, Limits())
    assert again.state is StudyState.QUEUED


def test_asking_again_withdraws_what_was_planned_and_never_tried(store, study, question, requests):
    untried = requests(1)
    enter(store, study, untried)
    again = store.ask(question, Limits(memory_limit_bytes=1))
    assert again.probes == ()
    assert store.events(study.id)[-2].data["state"] == "withdrawn"
    [entered] = enter(store, study, untried)
    assert (entered.id, entered.row_id) == (1, 2), "row ids are not given twice"


@pytest.mark.parametrize("end", ["crashed", "given back"])
def test_asking_again_closes_what_was_tried_and_is_not_done(
    store, study, question, requests, worker, end
):
    """The planner may want something else, and the budget is that of the new limits."""
    enter(store, study, requests(2))
    claim = claimed(store, study, worker)
    if end == "crashed":
        assert store.record(claim, Measurement(outcome=Outcome.CRASHED))  # to be tried once more
    else:
        assert store.give_back(claim, "interrupted")
    again = store.ask(question, Limits(max_probes=1))
    [probe] = again.probes
    assert probe.state is ProbeState.DONE
    assert probe.measurement.outcome is Outcome.CANCELLED
    assert again.probes_before == 1
    assert probes_of_request(again) == ()
    assert store.claim(study.id, worker) is None
    told = [e.data for e in store.events(study.id) if e.kind is EventKind.PROBE][-2:]
    assert {data.get("outcome", data["state"]) for data in told} == {"cancelled", "withdrawn"}
    # the same settings may be wanted again
    enter(store, study, [replace(requests(2)[0], repetition=1)])
    assert claimed(store, study, worker).probe.request.repetition == 1


def test_what_another_worker_runs_meanwhile_is_the_new_requests(
    store, study, question, requests, worker
):
    enter(store, study, requests(2))
    first, second = claimed(store, study, worker), claimed(store, study, worker)
    assert store.record(second, Measurement(outcome=Outcome.OK, wall_s=1.0))
    again = store.ask(question, Limits())
    assert [p.state for p in again.probes] == [ProbeState.RUNNING, ProbeState.DONE]
    assert [p.id for p in probes_of_request(again)] == [first.probe.id]
    assert store.record(first, Measurement(outcome=Outcome.OK, wall_s=1.0))
    assert [p.id for p in probes_of_request(store.study(study.id))] == [first.probe.id]


def test_time_of_small_replicas_is_kept_for_the_request_and_in_all(store, study, question):
    store.add_guard_time(study.id, 2.0)
    store.add_guard_time(study.id, 0.5)
    assert (store.study(study.id).guard_s, store.study(study.id).guard_before_s) == (2.5, 0.0)
    store.ask(question, Limits(max_probes=3))
    store.add_guard_time(study.id, 1.0)
    assert (store.study(study.id).guard_s, store.study(study.id).guard_before_s) == (1.0, 2.5)


def test_two_who_ask_at_once_make_one_study(url, question):
    open_store(url).close()
    barrier = threading.Barrier(4)

    def ask(_):
        with open_store(url) as store:
            barrier.wait()
            return store.ask(question, Limits()).id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    with open_store(url) as store:
        [summary] = store.studies()
        assert store.study(summary.id).revision == 4


def test_another_question_with_the_same_id_is_refused(store, study, question):
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(StudyRow).values(identity="0" * 64))
    with pytest.raises(StoreError, match="belongs to another question"):
        store.ask(question, Limits())


def test_a_study_moves_as_the_table_allows(store, study):
    cursor = store.events(study.id)[-1].id
    for before, to in itertools.product(StudyState, StudyState):
        with Session(store.transactions.writer) as session, session.begin():
            session.execute(update(StudyRow).values(state=before, reason=""))
        allowed = to in STUDY_TRANSITIONS[before]
        assert store.move(study.id, to, "because") is allowed, (before, to)
        now = store.study(study.id)
        assert (now.state, now.reason) == ((to, "because") if allowed else (before, ""))
        told = store.events(study.id, after=cursor)
        data = {"before": str(before), "state": str(to), "reason": "because"}
        assert [e.data for e in told] == ([data] if allowed else [])
        cursor = told[-1].id if told else cursor


def test_a_study_that_was_asked_again_is_not_done(store, study, question, worker):
    store.move(study.id, StudyState.RUNNING, worker=worker)
    again = store.ask(question, Limits(max_probes=1))
    assert not store.move(study.id, StudyState.DONE, "spent", revision=study.revision)
    assert store.move(study.id, StudyState.DONE, "spent", revision=again.revision)


def test_what_is_written_beside_a_move_is_written_with_it_or_not_at_all(store, study, monkeypatch):
    audit = Audit(store.transactions)
    note = AuditNote(actor="local", action=Action.CANCEL)

    def fail(*_):
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr("tuner.store.store.add_audit", fail)
        store.move(study.id, StudyState.CANCELLED, note=note)
    assert store.study(study.id).state is study.state
    assert store.move(study.id, StudyState.CANCELLED, note=note)
    assert not store.move(study.id, StudyState.CANCELLED, note=note)
    assert [one.study_id for one in audit.newest(5) if one.action == Action.CANCEL] == [study.id]


def test_a_probe_is_entered_at_the_revision_it_was_planned_at(store, study, requests):
    first, second = requests(2)
    probe = store.enter_probe(study.id, study.revision, first, None)
    assert (probe.state, probe.request, probe.memory_limit_bytes) == (
        ProbeState.QUEUED,
        first,
        None,
    )
    assert store.enter_probe(study.id, study.revision, second, None) is None
    assert store.study(study.id).probes == (probe,)


def test_of_those_who_plan_at_once_one_enters(url, store, study, requests):
    barrier = threading.Barrier(4)

    def plan(request):
        with open_store(url) as mine:
            barrier.wait()
            return mine.enter_probe(study.id, study.revision, request, None) is not None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(plan, requests(4))) == [False, False, False, True]
    assert len(store.study(study.id).probes) == 1


@pytest.mark.parametrize("state", [StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED])
def test_no_probe_is_entered_or_claimed_in_a_study_at_its_end(
    store, study, requests, state, worker
):
    enter(store, study, requests(1))
    store.move(study.id, StudyState.RUNNING)
    store.move(study.id, state)
    revision = store.study(study.id).revision
    assert store.enter_probe(study.id, revision, requests(2)[1], None) is None
    assert store.claim(study.id, worker) is None


def test_the_same_probe_is_not_entered_twice(store, study, requests):
    [request] = requests(1)
    enter(store, study, [request])
    with pytest.raises(IntegrityError):
        enter(store, study, [request])
    enter(store, study, [replace(request, repetition=1)])


def test_what_the_planner_must_know_changes_the_revision(
    store, study, requests, worker, question, run_out
):
    revisions = [study.revision]

    def changed():
        revisions.append(store.study(study.id).revision)
        return revisions[-1] > revisions[-2]

    enter(store, study, requests(2))
    assert changed()
    claim = claimed(store, study, worker)
    store.beat(claim)
    assert not changed()
    store.record(claim, Measurement(outcome=Outcome.OOM))
    assert changed()
    claimed(store, study, ELSEWHERE)
    run_out()
    store.reap()
    assert changed()
    store.ask(question, Limits())
    assert changed()


def test_what_a_worker_waits_for_is_not_said_of_a_study_that_another_is_at(store, study, worker):
    waits = "waiting for another probe"
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    store.tell(study.id, "checking")
    store.tell(study.id, waits, waits=ELSEWHERE)
    assert store.study(study.id).reason == "checking"
    store.tell(study.id, waits, waits=worker)
    assert store.study(study.id).reason == waits


def test_events_tell_in_order_what_happened(store, claim, question, found):
    store.record(claim, found)
    store.move(claim.study_id, StudyState.DONE, "no gain")
    store.ask(question, Limits(max_probes=2))
    events = store.events(claim.study_id)
    assert [(e.kind, e.data.get("state")) for e in events] == [
        (EventKind.ASKED, None),
        (EventKind.PROBE, "queued"),
        (EventKind.STUDY, "running"),
        (EventKind.PROBE, "running"),
        (EventKind.PROBE, "done"),
        (EventKind.STUDY, "done"),
        (EventKind.ASKED, None),
        (EventKind.STUDY, "queued"),
    ]
    assert [e.data["again"] for e in events if e.kind is EventKind.ASKED] == [False, True]
    assert events[-2].data["terms"]["max_probes"] == 2
    done = events[4].data
    assert (done["number"], done["attempt"], done["outcome"]) == (claim.probe.id, 1, "ok")
    assert done["settings"] == str(claim.probe.request.settings)
    assert {e.study_id for e in events} == {claim.study_id}
    assert [e.id for e in events] == sorted({e.id for e in events})


def test_what_is_queued_goes_with_its_study(store, study, claim, requests):
    first, second, third = requests(3)
    assert claim.probe.request == first
    for request in (second, third):
        assert store.enter_probe(study.id, store.study(study.id).revision, request, 1000)
    tried = store.claim(study.id, claim.worker)
    assert tried is not None
    assert store.give_back(tried, "the study's time is spent")
    assert store.move(study.id, StudyState.CANCELLED, "enough")
    left = {probe.request: probe for probe in store.study(study.id).probes}
    assert set(left) == {first, second}  # the third was never tried
    assert left[first].state is ProbeState.RUNNING
    assert left[second].measurement.outcome is Outcome.CANCELLED
    assert left[second].measurement.detail == "the study is cancelled"
    assert store.give_back(claim, "the study was cancelled")
    (ended,) = [p for p in store.study(study.id).probes if p.request == first]
    assert (ended.state, ended.measurement.outcome) == (ProbeState.DONE, Outcome.CANCELLED)
    assert store.reap() == 0


def test_an_accident_of_an_ended_study_is_not_tried_again(store, study, claim):
    assert store.move(study.id, StudyState.CANCELLED, "enough")
    assert store.record(claim, Measurement(outcome=Outcome.CRASHED, detail="a signal"))
    (probe,) = store.study(study.id).probes
    assert (probe.state, probe.measurement.outcome) == (ProbeState.DONE, Outcome.CRASHED)


def test_a_study_is_deleted_at_its_end_with_all_that_is_its_own(store, claim, question, found):
    note = AuditNote(actor="k1", action=Action.DELETE)
    assert not store.delete(claim.study_id, note), "it runs"
    store.move(claim.study_id, StudyState.CANCELLED)
    assert not store.delete(claim.study_id, note), "its worker holds a probe"
    assert store.record(claim, found)
    newest = store.events(claim.study_id)[-1].id
    assert store.delete(claim.study_id, note)
    assert store.status(claim.study_id) is None
    with store.transactions.read() as session:
        for table in (ProbeRow, AttemptRow, MeasurementRow, EventRow):
            assert session.scalar(select(func.count()).select_from(table)) == 0, table
    [entry] = Audit(store.transactions).newest(1)
    assert (entry.actor, entry.action, entry.study_id) == ("k1", "tune.delete", claim.study_id)
    assert not store.record(claim, found), "a late record finds nothing"
    anew = store.ask(question, Limits())
    assert (anew.probes, anew.probes_before) == ((), 0)
    assert store.events(anew.id)[0].id > newest, "no id comes twice: what is cached is of the old"


def test_what_is_old_and_at_its_end_is_pruned(store, study, question, monkeypatch):
    monkeypatch.setattr("tuner.store.store.DELETED", 1)
    smaller = replace(question, workload=replace(question.workload, sequence_length=64))
    young = replace(question, workload=replace(question.workload, sequence_length=32))
    ended = [store.ask(one, Limits()) for one in (smaller, young)]
    for one in ended:
        store.move(one.id, StudyState.CANCELLED)
    with store.transactions.write() as session:
        old = StudyRow.id.in_([study.id, ended[0].id])
        then = clock(session) - timedelta(days=91)
        session.execute(update(StudyRow).where(old).values(asked_at=then))
    assert store.prune(timedelta(days=90), by="local ann") == (1, 0)
    assert store.prune(timedelta(days=90), by="local ann") == (0, 0)
    assert {one.id for one in store.studies()} == {study.id, ended[1].id}, "one is still open"
    deleted = [one for one in Audit(store.transactions).newest(10) if one.action == Action.DELETE]
    assert [one.study_id for one in deleted] == [ended[0].id]


def test_what_a_worker_is_at_is_told_while_its_study_runs(store, question):
    study = store.ask(question, Limits())
    store.tell(study.id, "checking")  # nobody is at it
    assert store.study(study.id).reason == ""
    store.move(study.id, StudyState.RUNNING)
    before = store.study(study.id)
    store.tell(study.id, "checking")
    store.tell(study.id, "checking")  # once is enough
    running = store.study(study.id)
    assert (running.state, running.reason) == (StudyState.RUNNING, "checking")
    assert running.revision == before.revision
    told = [event.data for event in store.events(study.id) if event.kind is EventKind.STUDY]
    assert told[-1] == {"before": "running", "state": "running", "reason": "checking"}
    assert len(told) == 2
    smallest = f"nothing fits: {'knob=value,' * 25}; the limit is 76.0 GiB"
    store.move(study.id, StudyState.DONE, smallest)
    assert store.study(study.id).reason == smallest, "settings and what follows them are whole"


def test_time_after_a_study_s_end_is_not_part_of_its_cost(store, question):
    study = store.ask(question, Limits())
    store.move(study.id, StudyState.RUNNING)
    store.add_guard_time(study.id, 5.0)
    store.move(study.id, StudyState.DONE)
    store.add_guard_time(study.id, 7.0)  # of a worker that had joined
    assert store.study(study.id).guard_s == 5.0


def test_neighbours_are_studies_whose_probes_run_on_the_machine(store, question, worker, requests):
    mine = store.ask(question, Limits())
    other = store.ask(replace(question, knobs={"tp_size": (1,)}), Limits())
    store.move(other.id, StudyState.RUNNING, worker=worker)
    assert store.neighbours(mine.id, worker.host) == []
    enter(store, other, requests(1))
    claimed(store, other, worker)
    assert store.neighbours(mine.id, worker.host) == [other.id]
    assert store.neighbours(mine.id, "another") == []
    assert store.neighbours(other.id, worker.host) == []


def test_probes_are_numbered_within_their_study(store, question, requests):
    one = store.ask(question, Limits())
    workload = replace(question.workload, global_batch_size=2 * question.workload.global_batch_size)
    other = store.ask(replace(question, workload=workload), Limits())
    for study in (one, other):
        for request in requests(2):
            revision = store.study(study.id).revision
            assert store.enter_probe(study.id, revision, request) is not None
    found = [store.study(study.id).probes for study in (one, other)]
    assert [[probe.id for probe in probes] for probes in found] == [[1, 2], [1, 2]]
    assert len({probe.row_id for probes in found for probe in probes}) == 4
    assert found[1][0].as_dict()["number"] == 1


def test_dry_runs_are_numbered_apart(store, study, requests):
    first, *others = requests(5)
    dry = [replace(one, fidelity=Fidelity.PREDICTED) for one in others[:2]]
    for request in (dry[0], first, dry[1], *others[2:]):
        revision = store.study(study.id).revision
        assert store.enter_probe(study.id, revision, request) is not None
    assert [probe.id for probe in store.study(study.id).probes] == [-1, 1, -2, 2, 3]
