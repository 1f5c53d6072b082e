"""What is open when its key is revoked."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from api.app import create_app
from api.revocation import Revocation
from api.settings import Settings
from tests.api.asgi import Answer, connection, send_to
from tests.api.live import serving
from tests.api.studies import MEASURED, question_of
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.keys import Key, Keys
from tuner.store.records import Scope as Allows
from tuner.study import StudyState, Terms

LOOK_S = 0.05


@pytest.fixture
def keys(store: Store) -> Keys:
    return Keys(store.transactions)


@pytest.fixture
def service(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service that asks for keys."""
    monkeypatch.setattr("api.keys.Revocation", partial(Revocation, look_s=LOOK_S))
    settings = Settings(_env_file=None, poll_s=0.02, require_keys=True)
    with serving(create_app(store, settings)) as address:
        yield address


def test_streams_and_long_polls_of_a_revoked_key_end(
    store: Store, keys: Keys, service: str
) -> None:
    study_id = store.ask(question_of(MEASURED), Terms()).id
    (lost, text), (_, other) = keys.create("a", Allows.READ), keys.create("b", Allows.READ)
    heard, polled, kept = [], [], threading.Event()

    def listen(key: str) -> list[str]:
        lines = []
        headers = {"Authorization": f"Bearer {key}"}
        path = f"{service}/tune/{study_id}/events"
        with httpx.stream("GET", path, headers=headers, timeout=30) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.release()
        return lines

    def poll() -> None:
        headers = {"Authorization": f"Bearer {text}"}
        polled.append(httpx.get(f"{service}/tune/{study_id}?wait=60", headers=headers, timeout=90))

    begun = threading.Semaphore(0)
    threads = [
        threading.Thread(target=lambda: heard.append(listen(text))),
        threading.Thread(target=poll),
        threading.Thread(target=lambda: listen(other) and kept.set()),
    ]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=30)
    assert begun.acquire(timeout=30), "both listen"
    keys.revoke(lost.id)
    for thread in threads[:2]:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert heard, "it ended as a stream does"
    assert (polled[0].status_code, polled[0].json()["detail"]) == (401, "this key was revoked")
    assert threads[2].is_alive(), "another key's goes on"
    assert not kept.is_set()
    store.move(study_id, StudyState.CANCELLED)
    threads[2].join(timeout=30)
    assert kept.is_set()


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
    revocation = Revocation(away, look_s=0.01)
    answer = served(revocation, key.id, answering(lambda: keys.revoke(key.id), 30))
    assert answer.status == 401
    assert away.times == 3
    assert "whether keys were revoked is not known" in caplog.text


@pytest.mark.parametrize(
    ("method", "key_id"), [("POST", "revoked"), ("DELETE", "revoked"), ("GET", "")]
)
def test_what_changes_something_and_who_needs_no_key_is_answered(
    keys: Keys, method: str, key_id: str
) -> None:
    revocation = Revocation(keys, look_s=0.01)
    answer = served(revocation, key_id, answering(lambda: None, 0.1), method)
    assert (answer.status, answer.body) == (200, b"done")


def test_what_is_answered_at_once_is_not_looked_at(keys: Keys) -> None:
    away = Away(keys.transactions)
    assert served(Revocation(away, look_s=30), "k", answering(lambda: None, 0)).status == 200
    assert away.times == 0
