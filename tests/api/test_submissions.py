"""Questions that come in, below HTTP: what is looked up how often, and who waits for whom."""

import threading
from typing import Any

import pytest

from api import submissions as module
from api.answers import Answers
from api.problems import ProblemError
from api.submissions import PLACED_S, SEEN_S, Submissions
from tests.api.conftest import Clock
from tests.api.studies import MEASURED, PREDICTED
from tuner.errors import UsageError
from tuner.framework import installed_versions
from tuner.machine import this_machine
from tuner.store import Store, WorkerIdentity
from tuner.store.workers import Workers


@pytest.fixture
def submissions(store: Store, clock: Clock) -> Submissions:
    return Submissions(store, Answers(store, clock), 2, clock)


def submit(submissions: Submissions, body: Any, key: str | None = None) -> Any:
    noted: list[str] = []
    done = submissions.submit(
        body, owner="", key=key, also=lambda session, study_id: noted.append(study_id)
    )
    return done, noted


def test_what_asks_is_noted_and_what_joins_is_not(submissions: Submissions) -> None:
    first, noted = submit(submissions, MEASURED)
    assert noted == [first.body.standing.id]
    again, noted = submit(submissions, MEASURED)
    assert again.body == first.body
    assert noted == []
    replayed, noted = submit(submissions, MEASURED, "key")
    assert replayed.body == first.body
    assert noted == []


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
    assert first.body.standing.terms["fidelity"] == "predicted"
    identity, machine = WorkerIdentity.of_this_process("w"), this_machine().as_dict()
    Workers(store.transactions).register(identity, [], machine, installed_versions())
    clock.now += SEEN_S + 1
    second, _ = submit(submissions, body)
    assert second.body.standing.terms["fidelity"] == "measured"
    assert any("of worker w: " in note for note in second.notes)


def test_what_is_open_already_needs_no_room(submissions: Submissions) -> None:
    for gpus in (1, 2):
        submit(submissions, {**PREDICTED, "cluster": f"{gpus}xa100-80gb"})
    with pytest.raises(ProblemError) as caught:
        submit(submissions, {**PREDICTED, "cluster": "4xa100-80gb"})
    assert caught.value.status == 429
    assert caught.value.headers
    submit(submissions, {**PREDICTED, "cluster": "2xa100-80gb", "headroom": 0.2})


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
