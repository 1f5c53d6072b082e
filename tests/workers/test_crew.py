"""Slots that do what they are told, and the crew that they are of."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import ProbeError, StoreError
from workers import crew as crew_module
from workers.crew import Crew
from workers.slot import Order
from workers.stop import StopRequest


@dataclass(eq=False)
class FakeSlot:
    """Says what it was told; a run lasts until it is let go or given up."""

    desk: SimpleNamespace
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
        while not self.go.wait(0.01) and not self.desk.over:
            pass
        self.told.append(f"ran {self.desk.over}".strip())
        if self.fails:
            raise self.fails


ORDER: Any = SimpleNamespace(held=SimpleNamespace(since=0.0))


@pytest.fixture
def desk() -> SimpleNamespace:
    return SimpleNamespace(stop=StopRequest(), over="")


@pytest.fixture
def slots(desk: SimpleNamespace) -> list[FakeSlot]:
    return [FakeSlot(desk) for _ in range(3)]


@pytest.fixture
def crew(
    desk: SimpleNamespace, slots: list[FakeSlot], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Crew]:
    monkeypatch.setattr(crew_module, "TURN_S", 0.1)
    monkeypatch.setattr(crew_module, "TAKE_S", 0.01)
    with Crew(desk) as made:
        made.hire(slots, ExitStack())
        yield made


def test_probes_run_until_they_end(crew: Crew, slots: list[FakeSlot]) -> None:
    assert not crew.is_busy
    for slot in slots:
        crew.start(slot, ORDER)
    assert crew.is_full
    assert len(crew.running_s) == 3
    slots[1].go.set()
    crew.wait(30)
    assert crew.is_busy
    assert not crew.is_full
    assert crew.take(alone=False) is slots[1]


def test_giving_up_waits_for_all(crew: Crew, desk, slots: list[FakeSlot]) -> None:
    crew.start(slots[0], ORDER)
    crew.start(slots[2], ORDER)
    crew.give_up("enough")
    assert not crew.is_busy
    assert desk.over == ""
    assert [slot.told[-1:] for slot in slots] == [["ran enough"], [], ["ran enough"]]


def test_what_a_slot_raises_is_raised_and_the_others_end(desk, slots: list[FakeSlot]) -> None:
    slots[1].fails = ProbeError("a device is gone")
    slots[2].fails = StoreError("no answer")  # told in the log alone
    with pytest.raises(ProbeError, match="a device is gone"), Crew(desk) as crew:
        crew.hire(slots, ExitStack())
        for slot in slots:
            crew.start(slot, ORDER)
        slots[1].go.set()
        crew.wait(30)
    assert [slot.told.count("ran the worker ends") for slot in slots] == [1, 0, 1]
    assert all(slot.told[-1] == "rest" for slot in slots)


def test_the_first_whose_turn_it_is_and_the_others_wait_no_more(
    crew: Crew, slots: list[FakeSlot]
) -> None:
    slots[0].free = False
    assert crew.take(alone=False) is slots[1]
    assert slots[0].told == ["take wait", "rest"]
    assert slots[2].told == ["rest"]


def test_what_is_had_of_a_turn_is_kept_until_nothing_is_wanted(
    crew: Crew, slots: list[FakeSlot]
) -> None:
    for slot in slots:
        slot.free = False
    assert crew.take(alone=True) is None
    crew.make_room()
    assert "rest" not in slots[0].told
    crew.rest()
    assert slots[0].told[-1] == "rest"
    crew.make_room()
    assert slots[0].told[-2:] == ["rest", "rest"]


def test_one_that_must_be_alone_has_the_first_slot_and_no_other_has_ranks(
    crew: Crew, slots: list[FakeSlot]
) -> None:
    slots[2].alive = True
    assert crew.take(alone=True) is slots[0]
    assert slots[0].told == ["take alone wait"]
    assert slots[1].told[0] == slots[2].told[0] == "end"


def test_one_that_must_be_alone_waits_for_its_own_neighbours(
    crew: Crew, slots: list[FakeSlot]
) -> None:
    crew.start(slots[1], ORDER)
    assert crew.take(alone=True) is None
    slots[1].go.set()
    crew.wait(30)
    assert crew.take(alone=True) is slots[0]


def test_room_is_made_where_another_waits(crew: Crew, slots: list[FakeSlot]) -> None:
    slots[0].alive = slots[0].wanted = slots[1].alive = True
    crew.make_room()
    assert [slot.told for slot in slots] == [["end"], [], ["rest"]]


def test_a_slot_for_which_nothing_was_is_asked_last(crew: Crew, slots: list[FakeSlot]) -> None:
    assert crew.take(alone=False) is slots[0]
    crew.put_last(slots[0])
    assert crew.take(alone=False) is slots[1]


def test_whether_there_is_room_is_asked_quietly(crew: Crew, slots: list[FakeSlot]) -> None:
    slots[0].free = False
    assert crew.take_free() is slots[1]
    assert slots[0].told == ["take"]
    assert slots[2].told == []


def test_other_slots_take_the_place_of_those_there_were(
    crew: Crew, desk, slots: list[FakeSlot]
) -> None:
    closed: list[str] = []
    stack = ExitStack()
    stack.callback(closed.append, "ranks")
    crew.hire([FakeSlot(desk)], stack)
    assert slots[0].told == ["rest"]
    crew.hire(slots, ExitStack())
    assert closed == ["ranks"]


def test_a_stop_ends_waiting(crew: Crew, desk, slots: list[FakeSlot]) -> None:
    wait: Callable[[float], str] = lambda seconds: "stop"  # noqa: E731
    desk.stop = SimpleNamespace(wait=wait)
    crew.start(slots[0], ORDER)
    crew.wait(1000)
    assert crew.take(alone=False) is not None
    slots[1].free = slots[2].free = False
    assert crew.take(alone=False) is None
