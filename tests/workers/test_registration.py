"""What a database says of a worker that serves, and when."""

import threading

import pytest

from tuner.errors import StoreError
from tuner.machine import Machine
from tuner.store import Store, WorkerIdentity
from tuner.store.workers import RegisteredWorker, Workers
from workers.registration import Registration

MACHINE = Machine(name="node7", gpus=(), cores=8, memory_bytes=2**33)


def living(store: Store) -> list[RegisteredWorker]:
    return Workers(store.transactions).living()


class Soon(threading.Event):
    """Waits for no more than a moment."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.1)


@pytest.fixture
def entry(store: Store, monkeypatch: pytest.MonkeyPatch) -> Registration:
    """With beats that follow each other soon; the last one is still waited for."""
    made = Registration(store, WorkerIdentity.of_this_process("w1"), ("h100",), MACHINE)
    monkeypatch.setattr(made, "_done", Soon())
    return made


def test_it_lives_while_it_is_entered(store, entry, eventually) -> None:
    with entry:
        (found,) = living(store)
        assert (found.name, found.pools) == ("w1", ("h100",))
        assert Machine.from_dict(found.machine) == MACHINE
        assert "torch" in found.versions
        eventually(lambda: living(store)[0].seen_at > found.seen_at)
    assert living(store) == []


def test_one_that_was_forgotten_registers_again(store, entry, monkeypatch, eventually) -> None:
    with entry:
        (found,) = living(store)
        monkeypatch.setattr(Workers, "seen", lambda self, worker_id: False)
        eventually(lambda: len(living(store)) > 1)
        monkeypatch.undo()
        assert found.id != living(store)[-1].id


def test_a_store_that_fails_holds_up_nothing(store, entry, monkeypatch, eventually) -> None:
    failures: list[int] = []

    def fail(self: Workers, *given: object) -> int:
        failures.append(1)
        raise StoreError("no answer")

    monkeypatch.setattr(Workers, "register", fail)
    with entry:
        eventually(lambda: len(failures) > 2)
        assert living(store) == []
        monkeypatch.undo()
        eventually(lambda: living(store))
        monkeypatch.setattr(Workers, "stopped", fail)
