"""What a rank notes when: the order of a run's parts."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from workers.probe import run
from workers.probe.record import Record
from workers.probe.run import Rank
from workers.probe.tracker import Phase


class Device:
    """One on which every timed run of steps has a near miss."""

    def __init__(self):
        self.retries = 1
        self.tracker = contextlib.nullcontext()
        self.tracker.add = lambda tensor: None

    def enter_phase(self):
        """Nothing is counted by phase."""

    def allocation_retries(self):
        return self.retries


def test_near_misses_of_timed_steps_count(monkeypatch):
    device, record = Device(), Record(rank=0)

    def track(rank, stack):
        rank.record.memory = {"allocation_retries": rank.device.allocation_retries()}

    def time(rank, stack):
        device.retries += 2

    built = SimpleNamespace(model=nn.Linear(2, 2), optimizer_steps=0)
    monkeypatch.setattr(run, "build_stack", lambda spec, place: built)
    monkeypatch.setattr(Rank, "_track", track)
    monkeypatch.setattr(Rank, "_time", time)
    spec = SimpleNamespace(is_alone=False, fidelity="measured")
    Rank(spec=spec, rank=0, device=device, phase=Phase(), record=record).run()
    assert record.memory == {"allocation_retries": 3}
    assert record.outcome == "ok"


class Peers:
    """Another rank, whose steps are longer by some seconds."""

    def __init__(self, more_s):
        self.more_s = more_s
        self.asked = 0

    def all_reduce(self, seconds, op):
        self.asked += 1
        seconds += self.more_s


class Steps(Rank):
    """A rank whose steps take what they are told to, a second for each micro-batch."""

    def _timed_step(self, stack, count, losses):
        self._step += 1
        return float(count)


def timed(monkeypatch, peers, counts, limit_s):
    monkeypatch.setattr(run.dist, "all_reduce", peers.all_reduce)
    spec = SimpleNamespace(
        accumulation_counts=counts, warmup_steps=3, tracked_steps=2, measured_steps=10,
        minimum_steps=3, time_budget_s=1e6, world_size=2, data_parallel_size=1,
        give_up_above_s=limit_s, settings=SimpleNamespace(gradient_accumulation_steps=16),
    )  # fmt: skip
    device = SimpleNamespace(torch_device=torch.device("cpu"))
    rank = Steps(spec=spec, rank=0, device=device, phase=Phase(), record=Record(rank=0))
    monkeypatch.setattr(rank.__class__, "_note_losses", lambda rank, losses: None)
    rank._time(SimpleNamespace(set_accumulation=lambda count: None))
    return rank


@pytest.mark.parametrize(
    ("more_s", "limit_s", "steps"),
    [
        (0.0, None, 10),
        (0.0, 16.5, 10),
        (0.0, 15.5, 2),
        (1.0, 16.5, 2),  # a peer is slower
        (1.0, 17.5, 10),
    ],
)
def test_the_slowest_rank_decides_whether_steps_are_too_slow(monkeypatch, more_s, limit_s, steps):
    """A step of 16 micro-batches takes 16 s by the line through 2 and 4, and a peer's 1 s more."""
    peers = Peers(more_s)
    rank = timed(monkeypatch, peers, [2, 4], limit_s)
    times = rank.record.step_times_s
    assert {count: len(times[count]) for count in times} == {"4": steps, "2": steps}
    assert rank._gave_up is (steps == 2)
    assert peers.asked == (2 if limit_s is None else 4)  # how many steps, and the look
