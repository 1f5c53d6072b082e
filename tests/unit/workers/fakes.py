"""Ranks without processes: a launcher whose ranks follow each order at once, as a script says."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from threading import Event
from typing import Any

from tests.records import dry_trace, rank_record
from tuner.core.measurement import RAN
from tuner.dryrun import DryRunner, DryRunStoppedError
from tuner.dryrun.profile import LIMIT_S
from tuner.errors import ProbeError
from workers.launchers.base import Ended, Job, RankEnd, Why
from workers.measuring.records import record_path
from workers.probe.orders import SPEC
from workers.stop import StopRequest


class HandStop(StopRequest):
    """Calls ``move`` with the seconds that others would wait for, and asks ``when`` before."""

    def __init__(self, move):
        super().__init__()
        self.move = move
        self.when = lambda: ""

    def wait(self, seconds):
        if not self._why and (why := self.when()):
            self._why = why
        if not self._why and seconds:
            time.sleep(0.001)  # other threads go on too
            self.move(seconds)
        return self._why


Act = Callable[["FakeRun", Mapping[str, Any], int], str | Mapping[str, Any] | list[str | None]]
"""What ranks do of an order: given the run, the spec and the number of the probe in its run; an
outcome, fields of the records, ``wait`` (asked again), ``exit:N`` or ``kill``. A list has one of
them for each rank: ``None`` for one that goes on, ``cut`` for half a record."""


def always(outcome):
    return lambda run, spec, number: outcome


def hang(run, spec, number):
    return "wait"


OK = always("ok")


def meeting(runs, after=OK):
    """The first probes end when so many runs have begun one."""
    begun = set()

    def act(run, spec, number):
        begun.add(run)
        return after(run, spec, number) if len(begun) >= runs else "wait"

    return act


@dataclass(eq=False)
class FakeProbe:
    """An order that ranks follow: its moments are counted over all runs of a launcher."""

    gpus: tuple[str, ...]
    spec: Mapping[str, Any]
    began: int
    ended: int | None = None

    def overlaps(self, other):
        assert self.ended is not None
        assert other.ended is not None
        return self.began < other.ended and other.began < self.ended


@dataclass(eq=False)
class FakeRun:
    """A job that was started; its ranks do as the launcher's ``act`` says."""

    launcher: "FakeLauncher"
    job: Job
    ended: Ended | None = None
    orders: dict[Path, FakeProbe] = field(default_factory=dict)

    def poll(self):
        for path in sorted(self.job.directory.glob(f"*/{SPEC}")):
            if self.ended is None and not record_path(path.parent, 0).exists():
                self._follow(path.parent, json.loads(path.read_text()))
        return self.ended

    def cancel(self):
        if self.ended is None:
            self._end(Why.CANCELLED, -15, stopped=True)
        assert self.ended is not None
        return self.ended

    def logs(self):
        return dict.fromkeys(range(self.job.ranks), self.launcher.log)

    def _follow(self, order, spec):
        is_check = "check" in spec
        if is_check:
            found = self.launcher.check(self)
        else:
            if order not in self.orders:
                probe = FakeProbe(self.job.visible, spec, next(self.launcher.moments))
                self.orders[order] = probe
                self.launcher.probes.append(probe)
            found = self.launcher.act(self, spec, len(self.orders))
        if found == "wait":
            return
        if not is_check:
            self.orders[order].ended = next(self.launcher.moments)
        if isinstance(found, str) and found.startswith(("exit:", "kill")):
            code = -9 if found == "kill" else int(found.removeprefix("exit:"))
            self._end(Why.ENDED, code)
            return
        each = found if isinstance(found, list) else [found] * self.job.ranks
        for rank, one in enumerate(each):
            fields = {"outcome": one} if isinstance(one, str) else one
            if fields is not None:
                text = json.dumps(rank_record(rank, **fields))
                record_path(order, rank).write_text(text[:20] if one == "cut" else text)
        if not is_check and any(
            one not in (None, "ok", "cut", *RAN) for one in map(_outcome, each)
        ):
            self._end(Why.ENDED, 10)

    def _end(self, why, code, *, stopped=False):
        ends = (
            RankEnd(rank=rank, code=code, ended_at=time.time(), stopped=stopped)
            for rank in range(self.job.ranks)
        )
        self.ended = Ended(why=why, ranks=tuple(ends), wall_s=0.5)


def _outcome(found):
    return found.get("outcome", "ok") if isinstance(found, Mapping) else found


@dataclass(eq=False)
class FakeLauncher:
    """Starts no process."""

    act: Act = OK
    check: Callable[[FakeRun], str | Mapping[str, Any]] = lambda run: "ok"
    log: str = ""
    fails: Exception | None = None
    runs: list[FakeRun] = field(default_factory=list)
    probes: list[FakeProbe] = field(default_factory=list)
    moments: Iterator[int] = field(default_factory=count)

    def start(self, job):
        if self.fails is not None:
            raise self.fails
        run = FakeRun(self, job)
        self.runs.append(run)
        return run


@dataclass(eq=False)
class FakeRanks:
    """Ranks of a workplace that only note that they were ended."""

    alive: bool = False
    ends: int = 0

    def end(self):
        self.alive = False
        self.ends += 1


@dataclass(eq=False)
class GatedMeasure:
    """Measures until it is let go or its probe is given up; then raises, or returns ``result``."""

    result: Any
    fails: ProbeError | None = None
    go: Event = field(default_factory=Event)
    whys: list[str] = field(default_factory=list)

    def __call__(self, task):
        why = ""
        while not self.go.wait(0.005) and not (why := task.pause(0)):
            pass
        self.whys.append(why)
        if self.fails:
            raise self.fails
        return self.result


@dataclass(eq=False)
class FakeDryRunner(DryRunner):
    """Dry-runs without torch, and without a process: ``does`` so often, and is well after that.

    It makes ``error`` (refuses), ``late`` (as if a dry run took too long), ``busy`` (as if only the
    machine were to blame), ``die``, or ``hang`` (until it is given up).
    """

    does: str = "ok"
    times: float = inf
    move: Callable[[float], None] = lambda seconds: None  # of a clock, while it hangs

    def start(self):
        """Nothing is there to start."""

    def end(self):
        """Nor to end."""

    def ask(self, requests, why_stop):
        does, self.times = (self.does if self.times > 0 else "ok"), self.times - 1
        if does == "die":
            raise ProbeError("the dry run's program ended: the stand-in died")
        while does == "hang":
            if why := why_stop():
                raise DryRunStoppedError(why)
            self.move(0.1)
            time.sleep(0.001)
        for request in requests:
            found = {"trace": dry_trace(request)}
            yield {"id": request["id"], **({"error": DRY_ERRORS[does]} if does != "ok" else found)}


DRY_ERRORS = {
    "error": {"type": "NotImplementedError", "message": "no kernel", "operator": "aten::odd"},
    "busy": {"type": "TimeLimit", "message": "not done in 50 s", "rule": "time_limit"},
    "late": {
        "type": "TimeLimit",
        "message": "more than 45 s",
        "rule": "time_limit",
        "operator": "aten.odd",
        "phase": "backward",
        "limit_s": LIMIT_S,
    },
}
