"""Slots that do what they are told, and the slots that they are of."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import ProbeError, StoreError
from workers import slots as slots_module
from workers.slot import Order
from workers.slots import Slots
from workers.stop import StopRequest


@dataclass(eq=False)
class FakeSlot:
    """Says what it was told; a run lasts until it is let go or given up."""

    retrying: SimpleNamespace
    free: bool = True
    alive: bool = False
    wanted: bool = False
    fails: Exception | None = None
    devices: tuple[str, ...] = ()
    told: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def take(self, *, alone: bool, wait: bool) -> bool:
        self.told.append(f"take{' alone' if alone else ''}{' wait' if wait else ''}")
        return self.free

    def rest(self) -> None:
        self.told.append("rest")

    def end(self) -> None:
        self.told.append("end")
        self.alive = False

    def run(self, order: Order) -> None:
        while not self.go.wait(0.01) and not self.retrying.over:
            pass
        self.told.append(f"ran {self.retrying.over}".strip())
        if self.fails:
            raise self.fails


ORDER: Any = SimpleNamespace(held=SimpleNamespace(since=0.0))


@pytest.fixture
def retrying() -> SimpleNamespace:
    return SimpleNamespace(stop=StopRequest(), over="")


@pytest.fixture
def made(retrying: SimpleNamespace) -> list[FakeSlot]:
    return [FakeSlot(retrying) for _ in range(3)]


@pytest.fixture
def slots(
    retrying: SimpleNamespace, made: list[FakeSlot], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Slots]:
    monkeypatch.setattr(slots_module, "TURN_S", 0.1)
    monkeypatch.setattr(slots_module, "TAKE_S", 0.01)
    with Slots(retrying) as found:
        found.hire(made, ExitStack())
        yield found


def test_probes_run_until_they_end(slots: Slots, made: list[FakeSlot]) -> None:
    assert not slots.is_busy
    for slot in made:
        slots.start(slot, ORDER)
    assert slots.is_full
    assert len(slots.running_s) == 3
    made[1].go.set()
    slots.wait(30)
    assert slots.is_busy
    assert not slots.is_full
    assert slots.take(alone=False) is made[1]


def test_giving_up_waits_for_all(slots: Slots, retrying, made: list[FakeSlot]) -> None:
    slots.start(made[0], ORDER)
    slots.start(made[2], ORDER)
    slots.give_up("enough")
    assert not slots.is_busy
    assert retrying.over == ""
    assert [slot.told[-1:] for slot in made] == [["ran enough"], [], ["ran enough"]]


def test_what_a_slot_raises_is_raised_and_the_others_end(retrying, made: list[FakeSlot]) -> None:
    made[1].fails = ProbeError("a device is gone")
    made[2].fails = StoreError("no answer")  # told in the log alone
    with pytest.raises(ProbeError, match="a device is gone"), Slots(retrying) as slots:
        slots.hire(made, ExitStack())
        for slot in made:
            slots.start(slot, ORDER)
        made[1].go.set()
        slots.wait(30)
    assert [slot.told.count("ran the worker ends") for slot in made] == [1, 0, 1]
    assert all(slot.told[-1] == "rest" for slot in made)


def test_the_first_whose_turn_it_is_and_the_others_wait_no_more(
    slots: Slots, made: list[FakeSlot]
) -> None:
    made[0].free = False
    assert slots.take(alone=False) is made[1]
    assert made[0].told == ["take wait", "rest"]
    assert made[2].told == ["rest"]


def test_what_is_had_of_a_turn_is_kept_until_nothing_is_wanted(
    slots: Slots, made: list[FakeSlot]
) -> None:
    for slot in made:
        slot.free = False
    assert slots.take(alone=True) is None
    slots.make_room()
    assert "rest" not in made[0].told
    slots.rest()
    assert made[0].told[-1] == "rest"
    slots.make_room()
    assert made[0].told[-2:] == ["rest", "rest"]


def test_one_that_must_be_alone_has_the_first_slot_and_no_other_has_ranks(
    slots: Slots, made: list[FakeSlot]
) -> None:
    made[2].alive = True
    assert slots.take(alone=True) is made[0]
    assert made[0].told == ["take alone wait"]
    assert made[1].told[0] == made[2].told[0] == "end"


def test_one_that_must_be_alone_waits_for_its_own_neighbours(
    slots: Slots, made: list[FakeSlot]
) -> None:
    slots.start(made[1], ORDER)
    assert slots.take(alone=True) is None
    made[1].go.set()
    slots.wait(30)
    assert slots.take(alone=True) is made[0]


def test_room_is_made_where_another_waits(slots: Slots, made: list[FakeSlot]) -> None:
    made[0].alive = made[0].wanted = made[1].alive = True
    slots.make_room()
    assert [slot.told for slot in made] == [["end"], [], ["rest"]]


def test_a_slot_for_which_nothing_was_is_asked_last(slots: Slots, made: list[FakeSlot]) -> None:
    assert slots.take(alone=False) is made[0]
    slots.put_last(made[0])
    assert slots.take(alone=False) is made[1]


def test_whether_there_is_room_is_asked_quietly(slots: Slots, made: list[FakeSlot]) -> None:
    made[0].free = False
    assert slots.take_free() is made[1]
    assert made[0].told == ["take"]
    assert made[2].told == []


def test_other_slots_take_the_place_of_those_there_were(
    slots: Slots, retrying, made: list[FakeSlot]
) -> None:
    closed: list[str] = []
    stack = ExitStack()
    stack.callback(closed.append, "ranks")
    slots.hire([FakeSlot(retrying)], stack)
    assert made[0].told == ["rest"]
    slots.hire(made, ExitStack())
    assert closed == ["ranks"]


def test_a_stop_ends_waiting(slots: Slots, retrying, made: list[FakeSlot]) -> None:
    wait: Callable[[float], str] = lambda seconds: "stop"  # noqa: E731
    retrying.stop = SimpleNamespace(wait=wait)
    slots.start(made[0], ORDER)
    slots.wait(1000)
    assert slots.take(alone=False) is not None
    made[1].free = made[2].free = False
    assert slots.take(alone=False) is None
