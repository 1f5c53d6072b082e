"""One caller's questions do not keep another's waiting."""

import threading
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.answers import Answers
from api.app import create_app
from api.fair_queue import SHARE, FairQueue
from api.revocation import Revocation
from api.settings import Settings
from tests.api.asgi import HOST, body_of, connection, send_to
from tests.api.studies import PREDICTED, question_of
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.keys import Keys
from tuner.store.records import Scope
from tuner.store.sessions import Sessions
from tuner.study import Terms


@pytest.mark.parametrize(
    ("threads", "owner", "most"), [(2, "a", 1), (8, "a", 8 // SHARE), (8, "", 20)]
)
def test_so_many_of_one_are_worked_at_at_once(threads: int, owner: str, most: int) -> None:
    turns = FairQueue(threads)
    now, seen = 0, []

    async def work() -> None:
        nonlocal now
        async with turns.taken(owner):
            now += 1
            seen.append(now)
            await anyio.sleep(0.001)
            now -= 1

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(work)

    anyio.run(all_of_them)
    assert (len(seen), max(seen)) == (20, most)
    assert not turns._limiters, "who has nothing to ask is forgotten"


def test_who_gives_up_waiting_takes_no_turn() -> None:
    turns = FairQueue(2)

    async def hold() -> None:
        async with turns.taken("a"):
            with anyio.move_on_after(0.02):
                async with anyio.create_task_group() as inner:
                    inner.start_soon(take)
        assert not turns._limiters

    async def take() -> None:
        async with turns.taken("a"):
            raise AssertionError("two at once")

    anyio.run(hold)


def test_another_s_requests_are_answered_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(_env_file=None, require_keys=True, threads=2)
    app: FastAPI = create_app(store, settings)
    keys = Keys(store.transactions)
    greedy, other = (keys.create(name, Scope.SUBMIT)[1] for name in ("greedy", "other"))
    held, begun, whole = threading.Event(), threading.Event(), app.state.context.submissions.submit

    def slow(value: Any, *, owner: str, **more: Any) -> Any:
        if greedy.startswith(f"tuner_{owner}"):
            begun.set()
            assert held.wait(60)
        return whole(value, owner=owner, **more)

    monkeypatch.setattr(app.state.context.submissions, "submit", slow)
    statuses = []
    with TestClient(app, base_url="http://localhost") as client:

        def ask(key: str) -> Any:
            return client.post("/tune", json=PREDICTED, headers={"Authorization": f"Bearer {key}"})

        threads = [
            threading.Thread(target=lambda: statuses.append(ask(greedy).status_code))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        try:
            assert ask(other).status_code == 202
            assert not statuses
        finally:
            held.set()
            for thread in threads:
                thread.join(timeout=60)
    assert statuses == [202] * 6


COMPUTED = [
    ("GET", "/tune/{id}", "of"),
    ("GET", "/tune/{id}/probes", "probes"),
    ("GET", "/tune/{id}/export/accelerate", "whole"),
    ("DELETE", "/tune/{id}", "of"),
]
"""Requests, and the method of :class:`api.answers.Answers` that computes for them."""


@pytest.mark.parametrize(("method", "path", "computes"), COMPUTED)
def test_whatever_computes_takes_a_turn_of_its_key(
    store: Store, monkeypatch: pytest.MonkeyPatch, method: str, path: str, computes: str
) -> None:
    """Of three requests of one key one is worked at; another key's has the other thread."""
    app: FastAPI = create_app(store, Settings(_env_file=None, require_keys=True, threads=2))
    key = Keys(store.transactions).create("greedy", Scope.SUBMIT)[1]
    other = Keys(store.transactions).create("other", Scope.SUBMIT)[1]
    ids = [store.ask(question_of(PREDICTED), Terms()).id]
    held, begun, inside = threading.Event(), threading.Event(), []

    def slow(standing: Any) -> Any:
        inside.append(standing)
        begun.set()
        assert held.wait(60)
        raise StoreError("never mind")

    with TestClient(app, base_url="http://localhost") as client:

        def send(by: str, to: str, how: str = "GET") -> int:
            headers = {"Authorization": f"Bearer {by}"}
            return client.request(how, to.format(id=ids[0]), headers=headers).status_code

        monkeypatch.setattr(Answers, computes, lambda self, standing: slow(standing))
        monkeypatch.setattr(app.state.context.store, "move", lambda *a, **k: True)
        threads = [threading.Thread(target=send, args=(key, path, method)) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        try:
            assert [send(other, "/tune") for _ in range(5)] == [200] * 5
            assert len(inside) == 1
        finally:
            held.set()
            for thread in threads:
                thread.join(timeout=60)
    assert len(inside) == 3


def test_no_slow_request_keeps_those_from_a_thread_who_watch(store: Store) -> None:
    """Readiness, revocation and the notes of refusals have threads of their own."""
    app: FastAPI = create_app(store, Settings(_env_file=None, require_keys=True, threads=2))
    key = Keys(store.transactions).create("reader", Scope.READ)[1]
    refused = {"Authorization": "Bearer tuner_0000_none"}
    forbidden = {"Authorization": f"Bearer {key}"}
    held = threading.Event()

    async def work() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        async with anyio.create_task_group() as others:
            others.start_soon(anyio.to_thread.run_sync, held.wait)
            try:
                await anyio.wait_all_tasks_blocked()
                with anyio.fail_after(30):
                    for path, headers, status in (
                        ("/readyz", {}, 200),
                        ("/tune", refused, 401),
                        ("/audit", forbidden, 403),
                    ):
                        given = [HOST, *headers.items()]
                        answer = await send_to(
                            app, connection(path=path, headers=given), body_of(b"")
                        )
                        assert answer is not None
                        assert answer.status == status
                    keys = Keys(store.transactions)
                    revocation = Revocation(keys, Sessions(keys.transactions), look_s=0.01)
                    assert await revocation.good() == {keys.list()[0].id}
            finally:
                held.set()

    anyio.run(work)
