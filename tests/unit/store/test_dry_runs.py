"""Dry runs in the store: kept for all studies, and read with the studies that name them."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import ProbeRequest, ProbeState

FAILURE = {"type": "TimeLimit", "message": "took longer than 60 s"}


def request(settings, fidelity=Fidelity.PREDICTED):
    return ProbeRequest(settings=settings, fidelity=fidelity)


@pytest.fixture
def dry_run(question, dry_run_of):
    return dry_run_of(question, Settings())


def test_the_first_dry_run_of_a_key_stays_unless_it_failed(store, question, dry_run, dry_run_of):
    failed = dry_run_of(question, Settings(), error=FAILURE)
    assert failed.key == dry_run.key
    store.keep_dry_run(failed)
    store.keep_dry_run(dry_run)
    assert store.dry_runs([dry_run.key]) == {dry_run.key: dry_run}
    store.keep_dry_run(failed)
    store.keep_dry_run(replace(dry_run, created_at="later"))
    assert store.dry_runs([dry_run.key]) == {dry_run.key: dry_run}


def test_a_dry_run_of_another_format_is_as_if_it_were_not_there(store, dry_run):
    store.keep_dry_run(dry_run)
    with store.transactions.write() as session:
        session.execute(text("UPDATE dry_runs SET record = '{\"format\": 0}'"))
    assert store.dry_runs([dry_run.key]) == {}
    store.keep_dry_run(dry_run)
    assert store.dry_runs([dry_run.key]) == {dry_run.key: dry_run}


def test_a_probe_that_is_known_is_entered_as_done(store, study, dry_run, found):
    store.keep_dry_run(dry_run)
    measurement = replace(found, dry_run=dry_run.key)
    entered = store.enter_probe(study.id, study.revision, request(Settings()), 7, measurement)
    after = store.study(study.id)
    assert after.probes == (entered,)
    assert (entered.state, entered.memory_limit_bytes) == (ProbeState.DONE, 7)
    assert entered.measurement == measurement
    assert entered.finished_at
    assert after.revision == study.revision + 1
    assert after.dry_runs == {dry_run.key: dry_run}
    assert store.events(study.id)[-1].data["state"] == "done"
    assert store.events(study.id)[-1].data["outcome"] == "ok"
    assert store.studies()[0].probes == {Outcome.OK: 1}


def test_a_worker_may_take_probes_of_one_fidelity_only(store, study, worker):
    for fidelity in Fidelity:
        revision = store.study(study.id).revision
        assert store.enter_probe(study.id, revision, request(Settings(), fidelity), None)
    for fidelity in reversed(Fidelity):
        claim = store.claim(study.id, worker, fidelity)
        assert claim.probe.request.fidelity is fidelity
        assert store.claim(study.id, worker, fidelity) is None
