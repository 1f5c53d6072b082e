"""Questions that come in, below HTTP: what is looked up how often, and who waits for whom."""

import threading
from dataclasses import replace

import pytest

from api.answers import Answers
from api.problems import ProblemError
from api.submissions import LIVING_S, Submissions
from tests.unit.api.studies import MEASURED, PREDICTED, finish
from tuner.catalog.gpus import gpu_kind
from tuner.core.framework import installed_versions
from tuner.core.study import StudyState
from tuner.errors import OtherLimitsError
from tuner.machine import ReportedGpu, this_machine
from tuner.store import WorkerIdentity
from tuner.store.access import Audit
from tuner.store.requests import Requests
from tuner.store.workers import Workers


@pytest.fixture
def submissions(store, clock):
    return Submissions(store, Answers(store, clock), 2, clock)


def submit(submissions, body, key=None, owner=""):
    audit = Audit(submissions._store.transactions)
    before = max((one.id for one in audit.newest(1)), default=0)
    done = submissions.submit(body, owner=owner, key=key, address="192.0.2.1")
    entries = [one for one in audit.newest(10) if one.id > before]
    noted = [(one.actor, one.action, one.study_id, {**one.data}) for one in entries]
    return done, noted


def test_who_asks_is_noted_and_who_joins_once(submissions, store):
    first, noted = submit(submissions, MEASURED)
    study_id, where = first.body.status.id, {"address": "192.0.2.1"}
    assert noted == [("local", "tune.submit", study_id, where)]
    again, noted = submit(submissions, MEASURED)
    assert again.body == first.body
    assert noted == []
    replayed, noted = submit(submissions, MEASURED, "key")
    assert replayed.body == first.body
    assert noted == []
    assert submit(submissions, MEASURED, owner="b")[1] == [("b", "tune.join", study_id, where)]
    assert submit(submissions, MEASURED, owner="b")[1] == []
    anew = Submissions(store, Answers(store), 2)  # of a process that was started again
    assert submit(anew, MEASURED, "key")[1] == [("local", "tune.join", study_id, where)]


def test_one_key_has_its_share_of_open_studies(store, clock):
    submissions = Submissions(store, Answers(store, clock), 4, clock)
    bodies = [{**PREDICTED, "cluster": f"{2**n}xa100-80gb"} for n in range(5)]
    for body in bodies[:2]:
        mine = submit(submissions, body, owner="a")[0].body.status.id
    with pytest.raises(ProblemError, match="2 studies of this key are open") as caught:
        submit(submissions, bodies[2], owner="a")
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "60"})
    theirs = submit(submissions, bodies[2], owner="b")[0].body.status.id
    submit(submissions, bodies[2], owner="a")  # which is open already
    store.move(theirs, StudyState.CANCELLED)
    with pytest.raises(ProblemError):
        submit(submissions, bodies[3], owner="a")
    store.move(mine, StudyState.CANCELLED)
    submit(submissions, bodies[3], owner="a")
    for body in (bodies[2], bodies[4]):
        submit(submissions, body)  # without a key there is no share


def test_a_worker_that_came_is_seen_soon(store, submissions, clock):
    body = {**MEASURED, "cluster": "2xa100-80gb", "fidelity": "auto"}
    first, _ = submit(submissions, body)
    assert first.body.status.limits["fidelity"] == "predicted"
    identity, gpu = WorkerIdentity.of_this_process("w"), gpu_kind("a100-80gb")
    seen = ReportedGpu(name=gpu.driver_names[0], memory_mib=gpu.memory_bytes // 2**20)
    machine = replace(this_machine(), gpus=(seen, seen)).as_dict()
    Workers(store.transactions).register(identity, [], machine, installed_versions())
    clock.now += LIVING_S + 1
    joined, noted = submit(submissions, body)
    assert joined.body == first.body, "its limits are left as they are while it is open"
    assert noted == []
    said = [note for note in joined.notes if note.startswith("fidelity ")]
    assert said == [
        "fidelity predicted: the study is open on it; asked again at its end it is chosen anew"
    ]
    finish(store, first.body.status.id)
    second, _ = submit(submissions, body)
    assert second.body.status.limits["fidelity"] == "measured"
    assert any("of worker w: " in note for note in second.notes)


def test_terms_that_another_replaces_meanwhile_are_not_answered(store, submissions, monkeypatch):
    """Between the commit of what was asked and the reading of the answer."""
    whole = Requests.ask

    def ask_and_be_replaced(self, question, limits, *a, **k):
        found = whole(self, question, limits, *a, **k)
        store.ask(question, replace(limits, headroom=0.5))
        return found

    monkeypatch.setattr(Requests, "ask", ask_and_be_replaced)
    with pytest.raises(OtherLimitsError, match="was given other limits meanwhile"):
        submit(submissions, MEASURED)


def test_of_two_terms_at_once_one_is_refused(store, submissions):
    """Nobody's are replaced, whoever comes first."""
    bodies = [{**MEASURED, "headroom": share / 100} for share in range(8)]
    ready, refused, taken = threading.Barrier(len(bodies)), [], []

    def ask(body):
        ready.wait()
        try:
            taken.append(submit(submissions, body)[0].body.limits.headroom)
        except OtherLimitsError as error:
            refused.append(error)

    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)
    (study,) = store.studies()
    assert store.study(study.id).limits.headroom == taken[0]
    assert len([one for one in store.events(study.id) if one.kind == "asked"]) == 1
