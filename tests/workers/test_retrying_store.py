"""A store that is asked again, and the reasons for which a probe is given up."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import StoreError, UnreadableStudyError, UsageError
from tuner.store import WorkerIdentity
from workers import retrying_store as retrying_module
from workers.retrying_store import Held, RetryingStore, may_pass
from workers.stop import StopRequest


@pytest.fixture
def retrying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetryingStore:
    monkeypatch.setattr(retrying_module, "RETRY_S", 0.01)
    store: Any = SimpleNamespace(lease_s=60.0, beat=lambda claim: True)
    return RetryingStore(store, StopRequest(), WorkerIdentity.of_this_process(), tmp_path)


def failing(*errors: Exception) -> Callable[[], int]:
    left = list(errors)

    def call() -> int:
        if left:
            raise left.pop(0)
        return 7

    return call


def test_troubles_of_the_database_may_pass(retrying: RetryingStore) -> None:
    call = failing(StoreError("no answer"), UsageError("db", "x", "it is read-only"))
    assert retrying.patiently(call) == 7


def test_mistakes_do_not(retrying: RetryingStore) -> None:
    with pytest.raises(UsageError, match="study"):
        retrying.patiently(failing(UsageError("study", "st-1", "no such study")))
    assert not may_pass(UsageError("study", "st-1", "no such study"))
    assert not may_pass(UnreadableStudyError("of another version"))


def test_patience_ends(retrying: RetryingStore) -> None:
    with pytest.raises(StoreError, match="no answer"):
        retrying.patiently(failing(StoreError("no answer"), StoreError("none yet")), 0.0)


def test_nothing_is_tried_again_when_a_stop_is_requested(retrying: RetryingStore) -> None:
    retrying.stop.request("enough")
    with pytest.raises(StoreError):
        retrying.patiently(failing(StoreError("no answer")))
    assert retrying.patiently(failing()) == 7  # one try there is


def test_why_a_probe_is_given_up(retrying: RetryingStore) -> None:
    held = Held(retrying, SimpleNamespace(), claimed_at=retrying_module.time.monotonic())  # type: ignore
    assert held.pause(0) == ""
    retrying.over = "the budget is spent"
    assert held.pause(0) == "the budget is spent"
    retrying.stop.request("the worker got SIGTERM")
    assert held.pause(100) == "the worker got SIGTERM"


def test_a_lease_that_cannot_be_kept_is_a_reason(retrying: RetryingStore) -> None:
    held = Held(retrying, SimpleNamespace(), claimed_at=retrying_module.time.monotonic() - 50)  # type: ignore
    assert held.pause(0) == "the lease could not be renewed in time"
