"""What is open when its key is revoked, or its session is over."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from api.app import create_app
from api.revocation import Revocation
from api.sessions import SESSION
from api.settings import Settings
from tests.api.asgi import Answer, connection, send_to
from tests.api.live import serving
from tests.api.studies import MEASURED, question_of
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.keys import Key, Keys
from tuner.store.records import Scope as Allows
from tuner.store.sessions import Sessions
from tuner.study import StudyState, Terms

LOOK_S = 0.05
WITHIN_S = 90


@pytest.fixture
def keys(store: Store) -> Keys:
    return Keys(store.transactions)


@pytest.fixture
def watches() -> list[Revocation]:
    """What watches over the requests of the service."""
    return []


@pytest.fixture
def service(
    store: Store, watches: list[Revocation], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A service that asks for keys."""

    def watch(keys: Keys, sessions: Sessions) -> Revocation:
        watches.append(Revocation(keys, sessions, look_s=LOOK_S))
        return watches[-1]

    monkeypatch.setattr("api.keys.Revocation", watch)
    settings = Settings(_env_file=None, poll_s=0.02, require_keys=True)
    with serving(create_app(store, settings)) as address:
        yield address


def wait_until_open(watches: list[Revocation], count: int) -> None:
    """Wait until so many requests were let in and are being answered."""
    until = time.monotonic() + WITHIN_S
    while sum(len(watch._open) for watch in watches) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_streams_and_long_polls_of_a_revoked_key_end(
    store: Store, keys: Keys, service: str, watches: list[Revocation]
) -> None:
    study_id = store.ask(question_of(MEASURED), Terms()).id
    (lost, text), (_, other) = keys.create("a", Allows.READ), keys.create("b", Allows.READ)
    heard, polled, kept = [], [], threading.Event()

    def listen(key: str) -> list[str]:
        headers = {"Authorization": f"Bearer {key}"}
        path = f"{service}/tune/{study_id}/events"
        with httpx.stream("GET", path, headers=headers, timeout=WITHIN_S) as answer:
            return list(answer.iter_lines())

    def poll() -> None:
        headers = {"Authorization": f"Bearer {text}"}
        polled.append(
            httpx.get(f"{service}/tune/{study_id}?wait=60", headers=headers, timeout=WITHIN_S)
        )

    threads = [
        threading.Thread(target=lambda: heard.append(listen(text))),
        threading.Thread(target=poll),
        threading.Thread(target=lambda: listen(other) and kept.set()),
    ]
    for thread in threads:
        thread.start()
    wait_until_open(watches, 3)
    keys.revoke(lost.id)
    for thread in threads[:2]:
        thread.join(timeout=WITHIN_S)
        assert not thread.is_alive()
    assert heard, "it ended as a stream does"
    assert (polled[0].status_code, polled[0].json()["detail"]) == (
        401,
        "this key was revoked, or the session is over",
    )
    assert threads[2].is_alive(), "another key's goes on"
    assert not kept.is_set()
    store.move(study_id, StudyState.CANCELLED)
    threads[2].join(timeout=WITHIN_S)
    assert kept.is_set()


def test_a_stream_of_a_session_ends_when_one_signs_out(
    store: Store, keys: Keys, service: str, watches: list[Revocation]
) -> None:
    study_id = store.ask(question_of(MEASURED), Terms()).id
    key, _ = keys.create("a", Allows.READ)
    sessions = Sessions(keys.transactions)
    mine, another = sessions.begin(key.id), sessions.begin(key.id)
    assert sessions.open_ids() >= {id_of(sessions, mine), id_of(sessions, another)}

    def listen(token: str) -> None:
        headers = {"Cookie": f"{SESSION}={token}"}
        path = f"{service}/tune/{study_id}/events"
        with httpx.stream("GET", path, headers=headers, timeout=WITHIN_S) as answer:
            answer.read()

    threads = [threading.Thread(target=listen, args=(token,)) for token in (mine, another)]
    for thread in threads:
        thread.start()
    wait_until_open(watches, 2)
    sessions.end(mine)
    threads[0].join(timeout=WITHIN_S)
    assert not threads[0].is_alive()
    assert threads[1].is_alive(), "the other browser's goes on"
    keys.revoke(key.id)
    threads[1].join(timeout=WITHIN_S)
    assert not threads[1].is_alive()


def id_of(sessions: Sessions, token: str) -> str:
    found = sessions.check(token)
    assert found is not None
    return found.session_id


class Away(Keys):
    """Keys of a database that cannot be used twice."""

    times = 0

    def list(self) -> list[Key]:
        self.times += 1
        if self.times <= 2:
            raise StoreError("it is away")
        return super().list()


def answering(during: Callable[[], object], within_s: float) -> Callable[..., object]:
    """An application that answers after some time."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        during()
        await asyncio.sleep(within_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    return app


def served(
    revocation: Revocation, key_id: str, app: Callable[..., object], method: str = "GET"
) -> Answer:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await revocation.serve(key_id, app, scope, receive, send)  # type: ignore[arg-type]

    answer = asyncio.run(send_to(serve, connection(method)))
    assert answer is not None
    assert not revocation._open
    return answer


def test_a_database_that_is_away_ends_nothing_and_is_asked_again(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    away = Away(keys.transactions)
    key, _ = keys.create("a", Allows.READ)
    revocation = Revocation(away, Sessions(away.transactions), look_s=0.01)
    answer = served(revocation, key.id, answering(lambda: keys.revoke(key.id), 600))
    assert answer.status == 401
    assert away.times == 3
    assert "which keys and sessions still hold is not known" in caplog.text


@pytest.mark.parametrize(
    ("method", "key_id"), [("POST", "revoked"), ("DELETE", "revoked"), ("GET", "")]
)
def test_what_changes_something_and_who_needs_no_key_is_answered(
    keys: Keys, method: str, key_id: str
) -> None:
    revocation = Revocation(keys, Sessions(keys.transactions), look_s=0.01)
    answer = served(revocation, key_id, answering(lambda: None, 0.1), method)
    assert (answer.status, answer.body) == (200, b"done")


def test_what_is_answered_at_once_is_not_looked_at(keys: Keys) -> None:
    away = Away(keys.transactions)
    assert (
        served(
            Revocation(away, Sessions(away.transactions), look_s=30),
            "k",
            answering(lambda: None, 0),
        ).status
        == 200
    )
    assert away.times == 0
