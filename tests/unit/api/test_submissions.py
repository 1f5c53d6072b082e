"""Questions that come in, below HTTP: what is looked up how often, and who waits for whom."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from api import submissions as module
from api.answers import Answers
from api.problems import ProblemError
from api.submissions import LIVING_S, PLACED_S, Submissions, Submitted
from tests.unit.api.conftest import Clock
from tests.unit.api.studies import MEASURED, PREDICTED, finish, probe
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState
from tuner.errors import OtherLimitsError, StoreError, UsageError
from tuner.machine import this_machine
from tuner.store import Store, WorkerIdentity
from tuner.store.audit import Audit
from tuner.store.requests import Requests
from tuner.store.workers import Workers


@pytest.fixture
def submissions(store: Store, clock: Clock) -> Submissions:
    return Submissions(store, Answers(store, clock), 2, clock)


def submit(
    submissions: Submissions, body: Any, key: str | None = None, owner: str = ""
) -> tuple[Submitted, list[tuple[str, str, str, dict[str, Any]]]]:
    """What became of it, and what the audit noted."""
    audit = Audit(submissions._store.transactions)
    before = max((one.id for one in audit.newest(1)), default=0)
    done = submissions.submit(body, owner=owner, key=key, address="192.0.2.1")
    entries = [one for one in audit.newest(10) if one.id > before]
    noted = [(one.actor, one.action, one.study_id, {**one.data}) for one in entries]
    return done, noted


def test_who_asks_is_noted_and_who_joins_once(submissions: Submissions, store: Store) -> None:
    first, noted = submit(submissions, MEASURED)
    study_id, where = first.body.standing.id, {"address": "192.0.2.1"}
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


def test_whoever_is_answered_from_the_store_is_noted(
    store: Store, submissions: Submissions
) -> None:
    study_id = submit(submissions, MEASURED)[0].body.standing.id
    probe(store, study_id)
    finish(store, study_id)
    done, noted = submit(submissions, MEASURED, owner="b")
    assert done.body.answered
    assert [(actor, action) for actor, action, *_ in noted] == [("b", "tune.join")]


def test_terms_that_are_replaced_are_noted_as_that(submissions: Submissions) -> None:
    first, _ = submit(submissions, MEASURED)
    other = {**MEASURED, "headroom": 0.5, "replace": True}
    data = {"address": "192.0.2.1", "replaced": 1}
    assert submit(submissions, other, owner="b")[1] == [
        ("b", "tune.submit", first.body.standing.id, data)
    ]


def test_who_joins_is_answered_where_nothing_can_be_noted(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = submit(submissions, MEASURED)

    def fail(*arguments: object, **more: object) -> None:
        raise StoreError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "note", fail)
        assert submit(submissions, MEASURED, owner="b")[0].body == first.body
    assert len(submit(submissions, MEASURED, owner="b")[1]) == 1, "then it is"


def test_one_key_has_its_share_of_open_studies(store: Store, clock: Clock) -> None:
    submissions = Submissions(store, Answers(store, clock), 4, clock)
    bodies = [{**PREDICTED, "cluster": f"{2**n}xa100-80gb"} for n in range(5)]
    for body in bodies[:2]:
        mine = submit(submissions, body, owner="a")[0].body.standing.id
    with pytest.raises(ProblemError, match="2 studies of this key are open") as caught:
        submit(submissions, bodies[2], owner="a")
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "60"})
    theirs = submit(submissions, bodies[2], owner="b")[0].body.standing.id
    submit(submissions, bodies[2], owner="a")  # which is open already
    store.move(theirs, StudyState.CANCELLED)
    with pytest.raises(ProblemError):
        submit(submissions, bodies[3], owner="a")
    store.move(mine, StudyState.CANCELLED)
    submit(submissions, bodies[3], owner="a")
    for body in (bodies[2], bodies[4]):
        submit(submissions, body)  # without a key there is no share


def test_a_question_is_placed_once_in_a_while(
    submissions: Submissions, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    placings: list[Any] = []
    whole = module.place
    monkeypatch.setattr(module, "place", lambda *a: placings.append(a) or whole(*a))
    for _ in range(3):
        submit(submissions, PREDICTED)
    assert len(placings) == 1
    clock.now += PLACED_S + 1
    submit(submissions, PREDICTED)
    assert len(placings) == 2


def test_a_worker_that_came_is_seen_soon(
    store: Store, submissions: Submissions, clock: Clock
) -> None:
    body = {**MEASURED, "fidelity": "auto"}
    first, _ = submit(submissions, body)
    assert first.body.standing.limits["fidelity"] == "predicted"
    identity, machine = WorkerIdentity.of_this_process("w"), this_machine().as_dict()
    Workers(store.transactions).register(identity, [], machine, installed_versions())
    clock.now += LIVING_S + 1
    joined, noted = submit(submissions, body)
    assert joined.body == first.body, "its limits are left as they are while it is open"
    assert noted == []
    said = [note for note in joined.notes if note.startswith("fidelity ")]
    assert said == [
        "fidelity predicted: the study is open on it; asked again at its end it is chosen anew"
    ]
    finish(store, first.body.standing.id)
    second, _ = submit(submissions, body)
    assert second.body.standing.limits["fidelity"] == "measured"
    assert any("of worker w: " in note for note in second.notes)


def test_a_fidelity_that_is_left_open_is_chosen_anew_when_terms_are_replaced(
    store: Store, submissions: Submissions, clock: Clock
) -> None:
    body = {**MEASURED, "fidelity": "auto"}
    submit(submissions, body)
    identity, machine = WorkerIdentity.of_this_process("w"), this_machine().as_dict()
    Workers(store.transactions).register(identity, [], machine, installed_versions())
    clock.now += LIVING_S + 1
    with pytest.raises(OtherLimitsError) as caught:
        submit(submissions, {**body, "headroom": 0.5})
    assert caught.value.apart == {"headroom": (0.05, 0.5)}, "and not what was left open"
    second, _ = submit(submissions, {**body, "replace": True})
    assert second.body.limits.fidelity is Fidelity.MEASURED


def test_terms_that_another_replaces_meanwhile_are_not_answered(
    store: Store, submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the commit of what was asked and the reading of the answer."""
    whole = Requests.ask

    def ask_and_be_replaced(self: Requests, question: Any, limits: Any, *a: Any, **k: Any) -> str:
        found = whole(self, question, limits, *a, **k)
        store.ask(question, replace(limits, headroom=0.5))
        return found

    monkeypatch.setattr(Requests, "ask", ask_and_be_replaced)
    with pytest.raises(OtherLimitsError, match="was given other limits meanwhile"):
        submit(submissions, MEASURED)


def test_of_two_terms_at_once_one_is_refused(store: Store, submissions: Submissions) -> None:
    """Nobody's are replaced, whoever comes first."""
    bodies = [{**MEASURED, "headroom": share / 100} for share in range(8)]
    ready, refused, taken = threading.Barrier(len(bodies)), [], []

    def ask(body: Any) -> None:
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


def test_what_is_open_already_needs_no_room(submissions: Submissions) -> None:
    for gpus in (1, 2):
        submit(submissions, {**PREDICTED, "cluster": f"{gpus}xa100-80gb"})
    with pytest.raises(ProblemError) as caught:
        submit(submissions, {**PREDICTED, "cluster": "4xa100-80gb"})
    assert caught.value.status == 429
    assert caught.value.headers
    renewed = {**PREDICTED, "cluster": "2xa100-80gb", "headroom": 0.2, "replace": True}
    submit(submissions, renewed)


def test_nothing_is_written_for_what_is_wrong(store: Store, submissions: Submissions) -> None:
    with pytest.raises(UsageError):
        submit(submissions, {**PREDICTED, "cluster": "?"}, "key")
    assert store.studies() == []
    done, _ = submit(submissions, PREDICTED, "key")  # the key is still free
    assert done.body


def test_many_at_once_ask_one_study_once(store: Store, submissions: Submissions) -> None:
    threads = [
        threading.Thread(target=submit, args=(submissions, MEASURED, "one")) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (study,) = store.studies()
    asked = [event for event in store.events(study.id) if event.kind == "asked"]
    assert len(asked) == 1
