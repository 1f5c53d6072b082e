"""What a rank notes when: the order of a run's parts."""

import contextlib
from types import SimpleNamespace

import pytest
from torch import nn

from workers.probe import run
from workers.probe.record import Record
from workers.probe.run import Rank
from workers.probe.tracker import Phase


class Device:
    """One on which every timed run of steps has a near miss."""

    def __init__(self) -> None:
        self.retries = 1
        self.tracker = contextlib.nullcontext()
        self.tracker.add = lambda tensor: None  # type: ignore[attr-defined]

    def enter_phase(self) -> None:
        """Nothing is counted by phase."""

    def allocation_retries(self) -> int:
        return self.retries


def test_near_misses_of_timed_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    device, record = Device(), Record(rank=0)

    def track(rank: Rank, stack: object) -> None:
        rank.record.memory = {"allocation_retries": rank.device.allocation_retries()}

    def time(rank: Rank, stack: object) -> None:
        device.retries += 2

    built = SimpleNamespace(model=nn.Linear(2, 2), optimizer_steps=0)
    monkeypatch.setattr(run, "build_stack", lambda spec, place: built)
    monkeypatch.setattr(Rank, "_track", track)
    monkeypatch.setattr(Rank, "_time", time)
    spec = SimpleNamespace(is_emulated=False)
    Rank(spec=spec, rank=0, device=device, phase=Phase(), record=record).run()  # type: ignore[arg-type]
    assert record.memory == {"allocation_retries": 3}
    assert record.outcome == "ok"
