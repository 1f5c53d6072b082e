"""The store's contract: every test runs on each kind of database."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import StoreError, UnknownNameError, UsageError
from tuner.measurement import Measurement, Outcome
from tuner.store import Claim, EventKind, Store, WorkerIdentity, open_store, queue, study_id
from tuner.store.records import AttemptState
from tuner.store.rows import clock
from tuner.store.tables import AttemptRow, MeasurementRow, StudyRow
from tuner.study import (
    STUDY_TRANSITIONS,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
    Terms,
)

Requests = Callable[[int], list[ProbeRequest]]

ELSEWHERE = WorkerIdentity(host="elsewhere", boot_id="b", pid=1, started=1.0, name="elsewhere:1")


def enter(store: Store, study: Study, requests: list[ProbeRequest]) -> list[Probe]:
    revision = store.study(study.id).revision
    entered = []
    for number, request in enumerate(requests):
        probe = store.enter_probe(study.id, revision + number, request, 1000)
        assert probe is not None
        entered.append(probe)
    return entered


def claimed(store: Store, study: Study, worker: WorkerIdentity) -> Claim:
    claim = store.claim(study.id, worker)
    assert claim is not None
    return claim


@pytest.fixture
def study(store: Store, question: Question) -> Study:
    return store.ask(question, Terms())


@pytest.fixture
def claim(store: Store, study: Study, requests: Requests, worker: WorkerIdentity) -> Claim:
    """One probe, claimed by this process."""
    enter(store, study, requests(1))
    return claimed(store, study, worker)


def run_out(store: Store) -> None:
    """Lets all leases run out, and all signs of workers be old."""
    with Session(store._writer) as session, session.begin():
        now = clock(session)
        session.execute(update(AttemptRow).values(lease_until=now))
        session.execute(update(StudyRow).values(worker_seen_at=now.replace(year=2000)))


# Asking


def test_a_new_question_makes_a_queued_study(store: Store, question: Question) -> None:
    study = store.ask(question, Terms(max_probes=7))
    assert study.id == study_id(question) == f"st-{question.identity[:12]}"
    assert (study.state, study.reason, study.probes_before) == (StudyState.QUEUED, "", 0)
    assert study.question == question
    assert study.terms == Terms(max_probes=7)
    assert study.created_at == study.asked_at
    assert study.created_at.endswith("Z")
    assert 0 <= study.seed < 2**31
    assert store.find(question) == store.study(study.id) == study


def test_a_question_that_was_not_asked_is_not_found(store: Store, question: Question) -> None:
    assert store.find(question) is None


def test_asking_again_keeps_what_was_learned_and_counts_it(
    store: Store, claim: Claim, question: Question, found: Measurement
) -> None:
    assert store.record(claim, found)
    assert store.move(claim.study_id, StudyState.DONE, "no gain")
    before = store.study(claim.study_id)
    terms = Terms(max_probes=3, memory_limit_bytes=2**30)
    again = store.ask(question, terms)
    assert (again.state, again.reason, again.terms) == (StudyState.QUEUED, "", terms)
    assert again.probes_before == 1
    assert again.probes == before.probes
    assert (again.seed, again.created_at) == (before.seed, before.created_at)
    assert again.asked_at >= before.asked_at
    assert again.revision > before.revision


def test_asking_again_leaves_a_running_study_to_its_live_worker(
    store: Store, claim: Claim, question: Question
) -> None:
    assert store.ask(question, Terms(max_probes=3)).state is StudyState.RUNNING
    assert store.beat(claim)


def test_asking_again_puts_back_a_study_whose_worker_is_dead(
    store: Store, study: Study, question: Question, dead: WorkerIdentity
) -> None:
    assert store.move(study.id, StudyState.RUNNING, worker=dead)
    again = store.ask(question, Terms())
    assert again.state is StudyState.QUEUED


def test_asking_again_withdraws_what_was_planned_and_never_tried(
    store: Store, study: Study, question: Question, requests: Requests, worker: WorkerIdentity
) -> None:
    crashed, untried = requests(2)
    enter(store, study, [crashed])
    assert store.record(claimed(store, study, worker), Measurement(outcome=Outcome.CRASHED))
    enter(store, study, [untried])
    again = store.ask(question, Terms(memory_limit_bytes=1))
    assert [probe.request for probe in again.probes] == [crashed]
    assert store.events(study.id)[-2].data["state"] == "withdrawn"
    [entered] = enter(store, study, [untried])
    assert entered.id not in {1, 2}, "ids are not given twice"


def test_two_who_ask_at_once_make_one_study(url: str, question: Question) -> None:
    open_store(url).close()
    barrier = threading.Barrier(4)

    def ask(_: int) -> str:
        with open_store(url) as store:
            barrier.wait()
            return store.ask(question, Terms()).id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    with open_store(url) as store:
        [summary] = store.studies()
        assert store.study(summary.id).revision == 4


def test_another_question_with_the_same_id_is_refused(
    store: Store, study: Study, question: Question
) -> None:
    with Session(store._writer) as session, session.begin():
        session.execute(update(StudyRow).values(identity="0" * 64))
    with pytest.raises(StoreError, match="belongs to another question"):
        store.ask(question, Terms())


# Reading


def test_a_study_is_found_by_a_beginning_of_its_id(store: Store, study: Study) -> None:
    for given in (study.id, study.id[:6], study.id[3:], study.id.upper()):
        assert store.study(given).id == study.id


def test_an_unknown_study_is_refused_with_the_nearest(store: Store, study: Study) -> None:
    wrong = study.id[:-1] + "-"
    with pytest.raises(UnknownNameError, match=f"study: .*did you mean {study.id}"):
        store.study(wrong)
    for given in ("", "st-", "%", "st-_"):
        with pytest.raises(UsageError, match="study: "):
            store.study(given)


def test_an_empty_store_has_no_studies(store: Store) -> None:
    assert store.studies() == []
    with pytest.raises(UsageError, match="there are none in this database yet"):
        store.study("st-0")


def test_a_beginning_that_several_have_is_refused(store: Store, question: Question) -> None:
    for tp_size in range(1, 18):  # of 17 ids two begin with the same digit
        store.ask(replace(question, knobs={"tp_size": (tp_size,)}), Terms())
    digits = Counter(summary.id[3] for summary in store.studies())
    several = digits.most_common(1)[0][0]
    with pytest.raises(UsageError, match="several begin so: st-"):
        store.study(several)


def test_studies_are_listed_newest_first_with_their_outcomes(
    store: Store, claim: Claim, question: Question, found: Measurement
) -> None:
    store.record(claim, found)
    other = store.ask(replace(question, knobs={"tp_size": (1,)}), Terms())
    newest, older = store.studies()
    assert (newest.id, newest.probes) == (other.id, {})
    assert (older.id, older.probes) == (claim.study_id, {Outcome.OK: 1})
    assert (older.model_name, older.cluster_name) == ("stories15m", "cpu:2")
    assert older.state is StudyState.RUNNING
    assert len(store.studies(limit=1)) == 1
    store.ask(question, Terms())
    assert store.studies()[0].id == claim.study_id


def test_a_measurement_comes_back_as_it_was(
    store: Store, claim: Claim, found: Measurement, requests: Requests
) -> None:
    assert store.record(claim, found)
    [probe] = store.study(claim.study_id).probes
    assert probe.measurement == found
    assert (probe.id, probe.state, probe.memory_limit_bytes) == (
        claim.probe.id,
        ProbeState.DONE,
        1000,
    )
    assert probe.request == requests(1)[0]
    assert probe.finished_at is not None


def test_the_figures_of_a_measurement_can_be_queried(
    store: Store, claim: Claim, found: Measurement
) -> None:
    store.record(claim, found)
    with Session(store._engine) as session:
        row = session.scalars(select(MeasurementRow)).one()
    assert (row.allocated_bytes, row.reserved_bytes, row.device_bytes) == (300, 400, 500)
    # The median of the largest count that was run, 2 of 4 micro-batches: half of a step's tokens.
    assert row.step_time_s == 2.0
    assert row.tokens_per_s == 128 * 8 * 2 / 4 / 2.0
    assert (row.wall_s, row.device_s) == (12.5, 25.0)


def test_what_cannot_be_json_or_text_elsewhere_is_kept(store: Store, claim: Claim) -> None:
    odd = Measurement(
        outcome=Outcome.NON_FINITE,
        detail="two\nlines and \0 and \udcff",
        losses=(float("inf"),),
        log_tails={0: "nul \0, not unicode \udcff"},
    )
    assert store.record(claim, odd)
    assert store.study(claim.study_id).probes[0].measurement == odd
    assert store.events(claim.study_id)[-1].data["detail"] == "two lines and and ?"


@contextmanager
def counted() -> Iterator[list[str]]:
    statements: list[str] = []

    def count(conn: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def test_reading_takes_as_many_queries_whatever_is_stored(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity, found: Measurement
) -> None:
    def reading() -> list[int]:
        numbers = []
        for read in (lambda: store.study(study.id), store.studies, lambda: store.events(study.id)):
            with counted() as statements:
                read()
            numbers.append(len([s for s in statements if s.startswith("SELECT")]))
        return numbers

    empty = reading()
    enter(store, study, requests(6))
    for _ in range(4):
        store.record(claimed(store, study, worker), found)
    assert reading() == empty == [2, 2, 1]


def test_a_study_of_a_version_that_cannot_be_read_is_an_error(store: Store, study: Study) -> None:
    with Session(store._writer) as session, session.begin():
        session.execute(update(StudyRow).values(question={"workload": {}}))
    with pytest.raises(StoreError, match=f"study {study.id} cannot be read"):
        store.study(study.id)
    assert len(store.studies()) == 1


# Moving


def test_a_study_moves_as_the_table_allows(store: Store, study: Study) -> None:
    cursor = store.events(study.id)[-1].id
    for before, to in itertools.product(StudyState, StudyState):
        with Session(store._writer) as session, session.begin():
            session.execute(update(StudyRow).values(state=before, reason=""))
        allowed = to in STUDY_TRANSITIONS[before]
        assert store.move(study.id, to, "because") is allowed, (before, to)
        now = store.study(study.id)
        assert (now.state, now.reason) == ((to, "because") if allowed else (before, ""))
        told = store.events(study.id, after=cursor)
        data = {"before": str(before), "state": str(to), "reason": "because"}
        assert [e.data for e in told] == ([data] if allowed else [])
        cursor = told[-1].id if told else cursor


def test_a_study_moves_only_from_what_is_expected(store: Store, study: Study) -> None:
    assert not store.move(study.id, StudyState.CANCELLED, expect={StudyState.RUNNING})
    assert store.move(study.id, StudyState.RUNNING, expect={StudyState.QUEUED})
    assert not store.move(study.id, StudyState.RUNNING, expect={StudyState.QUEUED})


def test_a_study_that_was_asked_again_is_not_done(
    store: Store, study: Study, question: Question, worker: WorkerIdentity
) -> None:
    store.move(study.id, StudyState.RUNNING, worker=worker)
    again = store.ask(question, Terms(max_probes=1))
    assert not store.move(study.id, StudyState.DONE, "spent", revision=study.revision)
    assert store.move(study.id, StudyState.DONE, "spent", revision=again.revision)


def test_an_unknown_study_does_not_move(store: Store, study: Study) -> None:
    with pytest.raises(UsageError, match="study: "):
        store.move("st-0", StudyState.CANCELLED)


# Entering probes


def test_a_probe_is_entered_at_the_revision_it_was_planned_at(
    store: Store, study: Study, requests: Requests
) -> None:
    first, second = requests(2)
    probe = store.enter_probe(study.id, study.revision, first, None)
    assert probe is not None
    assert (probe.state, probe.request, probe.memory_limit_bytes) == (
        ProbeState.QUEUED,
        first,
        None,
    )
    assert store.enter_probe(study.id, study.revision, second, None) is None
    assert store.study(study.id).probes == (probe,)


def test_of_those_who_plan_at_once_one_enters(
    url: str, store: Store, study: Study, requests: Requests
) -> None:
    barrier = threading.Barrier(4)

    def plan(request: ProbeRequest) -> bool:
        with open_store(url) as mine:
            barrier.wait()
            return mine.enter_probe(study.id, study.revision, request, None) is not None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(plan, requests(4))) == [False, False, False, True]
    assert len(store.study(study.id).probes) == 1


@pytest.mark.parametrize("state", [StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED])
def test_no_probe_is_entered_or_claimed_in_a_study_at_its_end(
    store: Store, study: Study, requests: Requests, state: StudyState, worker: WorkerIdentity
) -> None:
    enter(store, study, requests(1))
    store.move(study.id, StudyState.RUNNING)
    store.move(study.id, state)
    revision = store.study(study.id).revision
    assert store.enter_probe(study.id, revision, requests(2)[1], None) is None
    assert store.claim(study.id, worker) is None


def test_the_same_probe_is_not_entered_twice(
    store: Store, study: Study, requests: Requests
) -> None:
    [request] = requests(1)
    enter(store, study, [request])
    with pytest.raises(IntegrityError):
        enter(store, study, [request])
    enter(store, study, [replace(request, repetition=1)])


def test_what_the_planner_must_know_changes_the_revision(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity, question: Question
) -> None:
    revisions = [study.revision]

    def changed() -> bool:
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
    run_out(store)
    store.reap()
    assert changed()
    store.ask(question, Terms())
    assert changed()


# The queue


def test_a_claim_takes_the_oldest_probe_and_runs_the_study(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    first, second = enter(store, study, requests(2))
    claim = claimed(store, study, worker)
    assert claim.probe == replace(first, state=ProbeState.RUNNING)
    assert (claim.study_id, claim.worker) == (study.id, worker)
    assert store.study(study.id).state is StudyState.RUNNING
    assert claimed(store, study, worker).probe.id == second.id
    assert store.claim(study.id, worker) is None


def test_many_who_claim_at_once_get_each_probe_once(
    url: str, store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    number = 200
    ids = [probe.id for probe in enter(store, study, requests(number))]
    done = Measurement(outcome=Outcome.OK)
    barrier = threading.Barrier(8)

    def work(_: int) -> list[int]:
        taken = []
        with open_store(url) as mine:
            barrier.wait()
            while claim := mine.claim(study.id, worker):
                taken.append(claim.probe.id)
                assert mine.record(claim, done)
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [probe for one in pool.map(work, range(8)) for probe in one]
    assert sorted(taken) == ids
    after = store.study(study.id)
    assert {probe.state for probe in after.probes} == {ProbeState.DONE}
    assert after.revision == study.revision + 2 * number
    events = store.events(study.id)
    assert len(events) == 1 + 1 + 3 * number
    assert [e.at for e in events] == sorted(e.at for e in events), "in the order of commits"


def test_a_probe_has_one_running_attempt_at_most(store: Store, claim: Claim) -> None:
    with pytest.raises(IntegrityError), Session(store._writer) as session, session.begin():
        row = session.get_one(AttemptRow, claim.attempt_id)
        second = AttemptRow(
            probe_id=row.probe_id,
            number=2,
            state=row.state,
            detail="",
            worker=row.worker,
            started_at=row.started_at,
            lease_until=row.lease_until,
        )
        session.add(second)


def test_statuses_are_checked_by_the_database(store: Store, study: Study) -> None:
    statement = "UPDATE studies SET state = 'lost'"
    with pytest.raises(IntegrityError), store._writer.begin() as connection:
        connection.exec_driver_sql(statement)


def test_a_beat_extends_the_lease(store: Store, claim: Claim) -> None:
    run_out(store)
    assert store.beat(claim)
    assert store.reap() == 0


def test_a_beat_tells_that_the_study_is_cancelled(store: Store, claim: Claim) -> None:
    assert store.beat(claim)
    assert store.move(claim.study_id, StudyState.CANCELLED, "enough")
    assert not store.beat(claim)
    assert store.record(claim, Measurement(outcome=Outcome.CANCELLED)), "the claim still holds"
    assert store.study(claim.study_id).probes[0].state is ProbeState.DONE


def test_a_late_record_changes_nothing(
    store: Store, study: Study, requests: Requests, found: Measurement
) -> None:
    enter(store, study, requests(1))
    late = claimed(store, study, ELSEWHERE)
    run_out(store)
    assert store.reap() == 1
    before = (store.study(study.id), store.events(study.id))
    assert not store.beat(late)
    assert not store.record(late, found)
    assert not store.give_back(late, "late")
    assert (store.study(study.id), store.events(study.id)) == before
    second = claimed(store, study, ELSEWHERE)
    assert not store.record(late, found), "nor when another worker has it"
    assert store.record(second, Measurement(outcome=Outcome.OOM))
    assert not store.record(second, found), "nor twice"
    assert not store.record(late, found)
    [probe] = store.study(study.id).probes
    assert probe.measurement == Measurement(outcome=Outcome.OOM)


@pytest.mark.parametrize("accident", [Outcome.CRASHED, Outcome.COMMUNICATION_ERROR])
def test_an_accident_is_tried_once_more(
    store: Store, claim: Claim, worker: WorkerIdentity, study: Study, accident: Outcome
) -> None:
    happened = Measurement(outcome=accident, detail="signal 11")
    assert store.record(claim, happened)
    [probe] = store.study(study.id).probes
    assert (probe.state, probe.measurement) == (ProbeState.QUEUED, None)
    assert store.record(claimed(store, study, worker), happened)
    [probe] = store.study(study.id).probes
    assert (probe.state, probe.measurement) == (ProbeState.DONE, happened)


def test_a_probe_that_succeeds_after_an_accident_is_done(
    store: Store, claim: Claim, worker: WorkerIdentity, study: Study, found: Measurement
) -> None:
    store.record(claim, Measurement(outcome=Outcome.CRASHED))
    assert store.record(claimed(store, study, worker), found)
    assert store.study(study.id).probes[0].measurement == found


def test_what_is_given_back_does_not_count(
    store: Store, claim: Claim, worker: WorkerIdentity, study: Study
) -> None:
    for _ in range(4):
        assert store.give_back(claim, "Ctrl-C")
        assert store.study(study.id).probes[0].state is ProbeState.QUEUED
        claim = claimed(store, study, worker)
    store.record(claim, Measurement(outcome=Outcome.CRASHED))
    assert store.study(study.id).probes[0].state is ProbeState.QUEUED
    told = [e.data.get("detail") for e in store.events(study.id)]
    assert told.count("Ctrl-C") == 4


def do_anything(store: Store, question: Question, requests: list[ProbeRequest], seed: int) -> None:
    """What workers and users do, in any order."""
    draw = random.Random(seed)
    study = store.ask(question, Terms())
    for number, request in enumerate(requests):
        worker = replace(ELSEWHERE, pid=draw.choice((1, 2, 3)))
        now = store.study(study.id)
        store.enter_probe(study.id, now.revision, request, None)
        claim = store.claim(study.id, worker)
        match draw.randrange(6):
            case 0 if claim:
                store.give_back(claim, "no")
            case 1 | 2 if claim:
                store.record(claim, Measurement(outcome=draw.choice(list(Outcome))))
            case 3:
                store.ask(question, Terms(max_probes=1 + number))
            case 4:
                store.move(study.id, draw.choice(list(StudyState)), str(number))
            case _:
                run_out(store)
                store.reap()


def test_those_who_do_anything_at_once_break_nothing(
    url: str, store: Store, question: Question, requests: Requests
) -> None:
    def work(seed: int) -> None:
        # Nobody plans what another plans: the planner sees the probes of its revision.
        mine = [replace(one, repetition=1000 * seed + i) for i, one in enumerate(requests(25))]
        with open_store(url) as opened:
            do_anything(opened, question, mine, seed)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    study = store.find(question)
    assert study is not None
    with Session(store._engine) as session:
        running = session.scalars(
            select(AttemptRow.probe_id).where(AttemptRow.state == AttemptState.RUNNING)
        ).all()
    states = {state: {p.id for p in study.probes if p.state is state} for state in ProbeState}
    assert states[ProbeState.RUNNING] == set(running)
    assert states[ProbeState.DONE] == {p.id for p in study.probes if p.measurement}
    assert len(states[ProbeState.DONE]) > 5
    told = {e.data["probe"]: e.data["state"] for e in store.events(study.id) if "probe" in e.data}
    left = {probe: state for probe, state in told.items() if state != "withdrawn"}
    assert left == {probe.id: str(probe.state) for probe in study.probes}


# Lost workers


def test_an_attempt_whose_lease_holds_is_not_lost(store: Store, claim: Claim) -> None:
    assert store.reap() == 0
    assert store.study(claim.study_id).state is StudyState.RUNNING


def test_a_worker_that_beats_before_it_is_reaped_keeps_its_probe(
    store: Store, study: Study, requests: Requests
) -> None:
    enter(store, study, requests(1))
    claim = claimed(store, study, ELSEWHERE)
    run_out(store)
    with store._read() as session:
        assert queue.suspects(session) == [claim.attempt_id]
    assert store.beat(claim)
    with store._write() as session:
        assert not queue.lose(session, claim.attempt_id)
    assert store.study(study.id).probes[0].state is ProbeState.RUNNING


def test_a_worker_elsewhere_is_lost_when_its_lease_runs_out(
    store: Store, study: Study, requests: Requests
) -> None:
    enter(store, study, requests(1))
    claimed(store, study, ELSEWHERE)
    assert store.reap() == 0
    run_out(store)
    assert store.reap() == 1
    after = store.study(study.id)
    assert after.probes[0].state is ProbeState.QUEUED
    assert after.state is StudyState.QUEUED
    assert store.reap() == 0


def test_a_dead_worker_of_this_machine_is_lost_at_once(
    store: Store, study: Study, requests: Requests, dead: WorkerIdentity
) -> None:
    enter(store, study, requests(1))
    claimed(store, study, dead)
    assert store.reap() == 1
    after = store.study(study.id)
    assert (after.state, after.reason) == (StudyState.QUEUED, "its worker is gone")
    assert after.probes[0].state is ProbeState.QUEUED


def test_a_pid_that_another_process_has_now_is_a_lost_worker(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    enter(store, study, requests(1))
    claimed(store, study, replace(worker, started=worker.started - 3600))
    assert store.reap() == 1


def test_a_probe_that_lost_three_workers_is_closed(
    store: Store, study: Study, requests: Requests, dead: WorkerIdentity, worker: WorkerIdentity
) -> None:
    enter(store, study, requests(1))
    assert store.give_back(claimed(store, study, worker), "not a loss")
    for lost in range(3):
        assert store.study(study.id).probes[0].state is ProbeState.QUEUED, lost
        claimed(store, study, dead)
        assert store.reap() == 1
    [probe] = store.study(study.id).probes
    assert probe.state is ProbeState.DONE
    assert probe.measurement is not None
    assert probe.measurement.outcome is Outcome.WORKER_LOST
    assert store.claim(study.id, worker) is None


def test_a_lost_attempt_is_counted_once_by_those_who_reap_at_once(
    url: str, store: Store, study: Study, requests: Requests, dead: WorkerIdentity
) -> None:
    enter(store, study, requests(4))
    for _ in range(4):
        claimed(store, study, dead)
    barrier = threading.Barrier(4)

    def reap(_: int) -> int:
        with open_store(url) as mine:
            barrier.wait()
            return mine.reap()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(reap, range(4))) == 4
    assert store.study(study.id).state is StudyState.QUEUED


def test_a_running_study_stays_with_the_worker_that_plans(
    store: Store, study: Study, worker: WorkerIdentity
) -> None:
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    run_out(store)
    store.reap()
    assert store.study(study.id).state is StudyState.RUNNING, "its process lives"


def test_a_running_study_without_a_sign_of_its_worker_is_put_back(
    store: Store, study: Study
) -> None:
    assert store.move(study.id, StudyState.RUNNING, worker=ELSEWHERE)
    store.reap()
    assert store.study(study.id).state is StudyState.RUNNING
    run_out(store)
    store.reap()
    assert store.study(study.id).state is StudyState.QUEUED


# Events


def test_events_tell_in_order_what_happened(
    store: Store, claim: Claim, question: Question, found: Measurement
) -> None:
    store.record(claim, found)
    store.move(claim.study_id, StudyState.DONE, "no gain")
    store.ask(question, Terms(max_probes=2))
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
    assert (done["probe"], done["attempt"], done["outcome"]) == (claim.probe.id, 1, "ok")
    assert done["settings"] == str(claim.probe.request.settings)
    assert {e.study_id for e in events} == {claim.study_id}
    assert [e.id for e in events] == sorted({e.id for e in events})


def test_events_are_read_on_from_a_cursor(store: Store, claim: Claim) -> None:
    first, *rest = store.events(claim.study_id)
    assert store.events(claim.study_id, after=first.id) == rest
    assert store.events(claim.study_id, after=rest[-1].id) == []


def test_readers_of_events_miss_none_while_others_write(
    url: str, store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    enter(store, study, requests(24))
    over = threading.Event()

    def work(_: int) -> None:
        with open_store(url) as mine:
            while claim := mine.claim(study.id, worker):
                mine.record(claim, Measurement(outcome=Outcome.OK))

    def read() -> list[int]:
        seen: list[int] = []
        while True:
            last = over.is_set()
            seen += [e.id for e in store.events(study.id, after=seen[-1] if seen else 0)]
            if last:
                return seen

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        list(pool.map(work, range(4)))
        over.set()
        assert reader.result() == [e.id for e in store.events(study.id)]
