"""Refusals that are noted, and those that are only counted."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api import refusals
from api.refusals import Refusals
from tuner.errors import StoreError
from tuner.store import open_store
from tuner.store.audit import NOBODY, Action, Audit


class Clock:
    """Time as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as store:
        yield Audit(store.transactions)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused(audit: Audit, clock: Clock) -> Refusals:
    made = Refusals(audit)
    made.each.clock = made.all.clock = clock
    return made


def note(refused: Refusals, who: str, action: Action = Action.KEY_REFUSED) -> None:
    asyncio.run(refused.note(who, NOBODY, action, {"address": who}))


def times_noted(audit: Audit) -> list[tuple[str, int]]:
    entries = reversed(audit.newest(1000))
    return [(entry.data["address"], entry.data["times"]) for entry in entries]


def test_the_first_is_noted_and_later_ones_once_a_minute(
    refused: Refusals, audit: Audit, clock: Clock
) -> None:
    for _ in range(5):
        note(refused, "192.0.2.1")
    assert times_noted(audit) == [("192.0.2.1", 1)]
    clock.now += 60
    for _ in range(2):
        note(refused, "192.0.2.1")
    assert times_noted(audit) == [("192.0.2.1", 1), ("192.0.2.1", 5)]


def test_each_caller_and_each_action_is_counted_by_itself(refused: Refusals, audit: Audit) -> None:
    note(refused, "a")
    note(refused, "b")
    note(refused, "a", Action.SCOPE_REFUSED)
    assert times_noted(audit) == [("a", 1), ("b", 1), ("a", 1)]


def test_refusals_from_everywhere_do_not_fill_the_disk(
    refused: Refusals, audit: Audit, clock: Clock
) -> None:
    for number in range(200):
        note(refused, f"caller {number}")
    assert len(times_noted(audit)) == refusals.ALL_BURST
    clock.now += 60
    note(refused, "caller 199")
    assert times_noted(audit)[-1] == ("caller 199", 2)


def test_only_so_many_are_counted(
    refused: Refusals, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MOST_COUNTED", 3)
    for number in (*range(100), *range(100)):
        note(refused, f"caller {number}")
    assert len(refused.times) == 3


def test_a_database_that_cannot_be_written_changes_no_answer(
    refused: Refusals, audit: Audit, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def full(*given: object, **data: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(audit, "note", full)
    with caplog.at_level(logging.WARNING):
        note(refused, "a")
    assert caplog.messages == ["key.refused of unknown could not be noted: the disk is full"]
