"""Event streams, from a service that really listens."""

import json
import threading
from itertools import pairwise

import httpx
import pytest

from api.app import create_app
from api.events import EventSent
from api.security import Revocation
from api.sessions import SESSION
from api.settings import Settings
from tests.process.api.live import serving
from tests.unit.api.studies import MEASURED, probe, question_of
from tests.waiting import until
from tuner.core.study import Limits, StudyState
from tuner.store.access import Keys, Sessions
from tuner.store.tables import Scope as Allows

LOOK_S = 0.05
WITHIN_S = 90


@pytest.fixture
def live(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def study_id(store):
    return store.ask(question_of(MEASURED), Limits(max_probes=50)).id


def blocks(response):
    block = {}
    for line in response.iter_lines():
        if not line and block:
            yield block
            block = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            block[name] = value


def stream(url, study_id, **headers):
    path = f"{url}/tune/{study_id}/events"
    return httpx.stream("GET", path, headers=headers, timeout=60)


def test_events_come_as_they_happen_until_the_end(live, store, study_id):
    with stream(live, study_id) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        coming = blocks(response)
        first = next(coming)
        assert first["event"] == "asked"
        probe(store, study_id)
        second = next(coming)
        assert second["event"] == "study"
        store.move(study_id, StudyState.CANCELLED)
        rest = list(coming)
    told = [first, second, *rest]
    assert [int(one["id"]) for one in told] == [one.id for one in store.events(study_id)]
    for one in told:
        data = json.loads(one["data"])
        EventSent.model_validate(data)
        assert (str(data["id"]), data["kind"]) == (one["id"], one["event"])
    for known, later in pairwise(told):  # who comes back misses nothing
        with stream(live, study_id, **{"Last-Event-ID": known["id"]}) as response:
            assert next(blocks(response)) == later


@pytest.fixture
def keys(store):
    return Keys(store.transactions)


@pytest.fixture
def watches():
    return []


@pytest.fixture
def service(store, watches, monkeypatch):

    def watch(keys, sessions):
        watches.append(Revocation(keys, sessions, look_s=LOOK_S))
        return watches[-1]

    monkeypatch.setattr("api.security.Revocation", watch)
    settings = Settings(_env_file=None, poll_s=0.02, require_keys=True)
    with serving(create_app(store, settings)) as address:
        yield address


def wait_until_open(watches, count):
    """Wait until so many requests were let in and are being answered."""
    until(lambda: sum(len(watch._open) for watch in watches) >= count, WITHIN_S)


def test_streams_and_long_polls_of_a_revoked_key_or_ended_session_end(
    store, keys, service, watches
):
    study_id = store.ask(question_of(MEASURED), Limits()).id
    (lost, text), (_, other) = keys.create("a", Allows.READ), keys.create("b", Allows.READ)
    owner, _ = keys.create("c", Allows.READ)
    sessions = Sessions(keys.transactions)
    mine, another = sessions.begin(owner.id), sessions.begin(owner.id)
    polled = []

    def listen(**headers):
        path = f"{service}/tune/{study_id}/events"
        with httpx.stream("GET", path, headers=headers, timeout=WITHIN_S) as answer:
            answer.read()  # it ends as a stream does

    def poll():
        headers = {"Authorization": f"Bearer {text}"}
        path = f"{service}/tune/{study_id}?wait=60"
        polled.append(httpx.get(path, headers=headers, timeout=WITHIN_S))

    def started(work):
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def ended(*threads):
        for thread in threads:
            thread.join(timeout=WITHIN_S)
            assert not thread.is_alive()

    stream = started(lambda: listen(Authorization=f"Bearer {text}"))
    long_poll = started(poll)
    by_other_key = started(lambda: listen(Authorization=f"Bearer {other}"))
    by_session = started(lambda: listen(Cookie=f"{SESSION}={mine}"))
    by_other_session = started(lambda: listen(Cookie=f"{SESSION}={another}"))
    wait_until_open(watches, 5)
    keys.revoke(lost.id)
    ended(stream, long_poll)
    assert (polled[0].status_code, polled[0].json()["code"]) == (401, "key_refused")
    assert by_session.is_alive()
    sessions.end(mine)
    ended(by_session)
    assert by_other_session.is_alive(), "the other browser's goes on"
    keys.revoke(owner.id)
    ended(by_other_session)
    assert by_other_key.is_alive(), "another key's goes on"
    store.move(study_id, StudyState.CANCELLED)
    ended(by_other_key)


# -- HEAD
