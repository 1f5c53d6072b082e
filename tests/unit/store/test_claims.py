"""Claims, records and what is given back when the answer of the database is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import select

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.errors import StoreError
from tuner.store import open_store
from tuner.store.tables import AttemptRow

PATIENCE_S = 120.0


@contextmanager
def answers_lost(store, *, of_message=False):
    """The next commit is made, of a message where there are any, and its answer does not come:
    the connection breaks."""
    dialect = store.transactions.engine.dialect
    commit = dialect.do_commit
    lost = []

    def lose(connection):
        lost.append(True)
        connection.close()
        raise dialect.loaded_dbapi.OperationalError("the connection is lost")

    def do_commit(connection):
        commit(connection)
        if not lost:
            lose(getattr(connection, "dbapi_connection", connection))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "do_commit", do_commit)
        if of_message and store.transactions.takes_messages:
            execute = dialect.loaded_dbapi.ClientCursor.execute

            def lossy(cursor, *given):
                execute(cursor, *given)
                lose(cursor.connection)

            patch.setattr(dialect.loaded_dbapi.ClientCursor, "execute", lossy)
        yield
    assert lost


def attempts(store):
    """Number and state of every attempt that was ever made."""
    columns = (AttemptRow.number, AttemptRow.state)
    with store.transactions.read() as session:
        rows = session.execute(select(*columns).order_by(AttemptRow.id))
        return [(number, str(state)) for number, state in rows]


def left_by(store, claim):
    """All that a record or what is given back writes."""
    study = store.study(claim.study_id)
    return attempts(store), store.events(claim.study_id), study.revision


@pytest.mark.parametrize("devices", [(), ("GPU-0", "GPU-1")])
@pytest.mark.parametrize("state", [StudyState.QUEUED, StudyState.RUNNING])
def test_a_claim_whose_answer_is_lost_ends_with_its_lease(
    store, study, requests, worker, run_out, devices, state
):
    assert store.enter_probe(study.id, study.revision, requests(1)[0])
    runs = state is StudyState.RUNNING
    if runs:
        assert store.move(study.id, state, worker=worker)
    with answers_lost(store, of_message=runs), pytest.raises(StoreError):
        store.claim(study.id, worker, devices=devices)
    assert store.claim(study.id, worker, devices=devices) is None, "nobody has it twice"
    run_out()
    assert store.reap() == 1
    assert store.claim(study.id, worker, devices=devices) is not None
    assert attempts(store) == [(1, "lost"), (2, "running")]


def test_a_record_whose_answer_is_lost_is_made_once(store, claim, found):
    strange = replace(found, losses=(10.5, float("nan")))
    with answers_lost(store), pytest.raises(StoreError):
        store.record(claim, strange)
    before = left_by(store, claim)
    assert store.record(claim, strange)
    assert not store.record(claim, found), "it found something else"
    assert not store.give_back(claim, "it is done")
    assert left_by(store, claim) == before


def test_an_accident_whose_record_is_sent_again_is_tried_once_more(store, claim, worker):
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 11")
    with answers_lost(store), pytest.raises(StoreError):
        store.record(claim, crashed)
    assert store.record(claim, crashed)
    assert not store.record(claim, replace(crashed, detail="signal 9"))
    assert store.claim(claim.study_id, worker) is not None
    assert store.record(claim, crashed), "also when another attempt runs"
    assert attempts(store) == [(1, "done"), (2, "running")]


def test_what_is_given_back_twice_is_given_back(store, claim):
    with answers_lost(store), pytest.raises(StoreError):
        store.give_back(claim, "Ctrl-C")
    before = left_by(store, claim)
    assert store.give_back(claim, "Ctrl-C")
    assert left_by(store, claim) == before
    assert not store.record(claim, Measurement(outcome=Outcome.OK))


def test_a_study_that_ends_while_it_is_claimed_has_nothing_queued(
    url, store, question, requests, worker
):
    for number in range(4):
        study = store.ask(replace(question, knobs={"tp_size": (1 + number,)}), Limits())
        if number % 2:
            assert store.move(study.id, StudyState.RUNNING, worker=worker)
        for turn, request in enumerate(requests(6)):
            assert store.enter_probe(study.id, study.revision + turn, request)
        barrier = threading.Barrier(4)

        def take(study=study, barrier=barrier):
            with open_store(url) as mine:
                barrier.wait(PATIENCE_S)
                return sum(mine.claim(study.id, worker) is not None for _ in range(4))

        with ThreadPoolExecutor(3) as pool:
            taking = [pool.submit(take) for _ in range(3)]
            barrier.wait(PATIENCE_S)
            assert store.move(study.id, StudyState.CANCELLED, "enough")
            taken = sum(one.result() for one in taking)
        after = store.study(study.id)
        assert [one.state for one in after.probes] == [ProbeState.RUNNING] * taken
