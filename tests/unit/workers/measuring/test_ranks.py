"""Ranks that stay for the next probe: who runs what, and when they end. None is a process."""

import time
from collections import namedtuple
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tests.records import SHORTAGE
from tests.unit.workers.conftest import HandClock
from tests.unit.workers.fakes import OK, FakeLauncher, always, hang
from tests.waiting import until
from tuner.core.measurement import Fidelity, Outcome
from tuner.errors import ProbeError
from tuner.machine import usable_cores
from workers.launchers.base import Why
from workers.launchers.local import LocalLauncher
from workers.measuring import ranks as ranks_module
from workers.measuring.ranks import CheckedDevices, Kind, OtherLoad, WarmRanks
from workers.probe.orders import SPENT, header

TWO = Kind(ranks=2, world_size=2, device="cpu")
GPUS = Kind(ranks=2, world_size=2, device="cuda")


def at(number, found):
    """Does this of the probe of that number in its run, and well of all others."""
    return lambda run, spec, now: found if now == number else "ok"


@dataclass
class Warm:
    """Ranks of a launcher that starts no process, and a clock that stands still."""

    ranks: WarmRanks
    launcher: FakeLauncher
    clock: HandClock

    def measure(self, kind=TWO, deadline_s=100.0, why=str):
        def pause(seconds):
            self.clock.move(seconds)
            return why()

        given = {"deadline_s": deadline_s, "pause": pause}
        return self.ranks.measure(kind, {"probe": 1}, **given).measurement

    def outcome(self, **given):
        return self.measure(**given).outcome


@pytest.fixture
def warm(tmp_path, clock):
    """``warm(act, check=..., **options)``."""
    opened = []

    def make(act=OK, *, check=None, **options):
        launcher = FakeLauncher(act=act, **({"check": check} if check else {}))
        ranks = WarmRanks(launcher=launcher, folder=tmp_path / "probes", **options)
        opened.append(ranks.__enter__())
        return Warm(ranks, launcher, clock)

    yield make
    for ranks in opened:
        ranks.__exit__(None, None, None)
    assert not list((tmp_path / "probes").glob("*"))


def test_probes_of_one_kind_share_ranks_and_others_have_their_own(warm):
    it = warm()
    found = [it.measure() for _ in range(3)]
    assert [one.outcome for one in found] == [Outcome.OK] * 3
    assert found[0].device_s == 2 * found[0].wall_s
    assert len(it.launcher.runs) == 1
    assert it.ranks.alive
    alone = Kind(ranks=1, world_size=8, device="cpu", fidelity=Fidelity.EMULATED, sharing=8)
    for kind in (alone, alone, TWO):
        assert it.outcome(kind=kind) is Outcome.OK
    jobs = [run.job for run in it.launcher.runs]
    assert [(job.ranks, job.sharing) for job in jobs] == [(2, None), (1, 8), (2, None)]


@pytest.mark.parametrize(
    ("found", "outcome", "runs", "detail"),
    [
        ("stopped_early", Outcome.STOPPED_EARLY, 1, ""),
        ("oom", Outcome.OOM, 2, ""),
        ("non_finite", Outcome.NON_FINITE, 2, ""),
        ("exit:3", Outcome.CRASHED, 2, "ended with exit code 3"),
        ("kill", Outcome.CRASHED, 2, "SIGKILL"),
        (["crashed", "communication_error"], Outcome.CRASHED, 2, ""),
        (["ok", "cut"], Outcome.CRASHED, 2, "its record is not JSON, or cut short"),
        (["ok", None], Outcome.TIMEOUT, 2, "rank 1 not done after 100 s"),
        ("wait", Outcome.TIMEOUT, 2, "not done after 100 s"),
    ],
)
def test_what_is_not_ok_is_told_and_the_next_probe_has_new_ranks(
    warm, found, outcome, runs, detail
):
    it = warm(at(2, found))
    assert it.outcome() is Outcome.OK
    second = it.measure()
    assert second.outcome is outcome
    assert detail in second.detail
    it.launcher.act = OK
    assert it.outcome() is Outcome.OK
    assert len(it.launcher.runs) == runs


def test_what_a_rank_says_is_of_its_own_probe(warm):
    it = warm(at(2, "oom"))
    it.launcher.log = f"{header('00000001')}one\n"
    assert it.measure().log_tails == {}
    it.launcher.log += f"{header('00000002')}two\n"
    assert it.measure().log_tails == {0: "two\n", 1: "two\n"}


def test_memory_that_stays_behind_wants_new_ranks(warm):
    def act(run, spec, number):
        (run.job.directory / SPENT).touch()
        return "ok"

    it = warm(act)
    assert [it.outcome() for _ in range(2)] == [Outcome.OK] * 2
    assert len(it.launcher.runs) == 2


def test_ranks_that_end_between_probes_are_replaced(warm):
    it = warm()
    assert it.outcome() is Outcome.OK
    it.launcher.runs[0]._end(Why.ENDED, -9)
    assert it.outcome() is Outcome.OK
    assert len(it.launcher.runs) == 2


def test_what_is_given_up_leaves_no_rank(warm):
    it = warm(hang)
    assert it.outcome(why=lambda: "stop") is Outcome.CANCELLED
    assert not it.ranks.alive

    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        it.measure(why=fail)
    assert not it.ranks.alive
    assert {run.ended.why for run in it.launcher.runs} == {Why.CANCELLED}


def test_ranks_are_ended_when_they_are_idle_for_long(warm, clock, monkeypatch):
    monkeypatch.setattr(ranks_module, "FEED_S", 0.01)
    it = warm(idle_s=30.0)
    assert it.outcome() is Outcome.OK
    clock.move(29.0)
    time.sleep(0.05)
    assert it.ranks.alive
    clock.move(2.0)
    until(lambda: not it.ranks.alive)
    assert it.outcome() is Outcome.OK


def test_devices_are_looked_at_after_one_was_lost(warm):
    it = warm(at(2, "device_lost"), check=lambda run: "device_lost")
    assert [it.outcome() for _ in range(2)] == [Outcome.OK, Outcome.DEVICE_LOST]
    with pytest.raises(ProbeError, match="is not there again: Error in forward: device_lost"):
        it.measure()
    assert not it.ranks.alive
    it.launcher.check = lambda run: "ok"
    assert it.outcome() is Outcome.OK
    it.launcher.check = lambda run: "device_lost"  # until it is there, and not again
    assert it.outcome(kind=replace(TWO, world_size=4)) is Outcome.OK


def test_gpus_are_looked_at_before_the_first_probe_and_by_the_same_ranks(warm):
    checked = CheckedDevices()
    it = warm(checked=checked)
    assert [it.outcome(kind=GPUS) for _ in range(2)] == [Outcome.OK] * 2
    assert len(it.launcher.runs) == 1
    bad = {"check": lambda run: "crashed"}
    again = warm(**bad, checked=checked)  # of another study, a short while later
    assert again.outcome(kind=GPUS) is Outcome.OK
    with pytest.raises(ProbeError, match="no probe can be run: Error in forward: crashed"):
        again.outcome(kind=replace(GPUS, visible=("GPU-b", "GPU-c")))  # other ones
    assert not again.ranks.alive
    assert warm(**bad, checked=CheckedDevices()).outcome() is Outcome.OK  # of a CPU
    assert warm(**bad).outcome(kind=GPUS) is Outcome.OK  # nobody wants them looked at
    again.clock.move(ranks_module.HOLDS_S + 1)
    with pytest.raises(ProbeError):  # too long ago
        warm(**bad, checked=checked).outcome(kind=GPUS)


def test_a_failing_look_is_no_outcome_of_a_probe_and_none_of_its_time(warm):
    it = warm(check=lambda run: "exit:1", checked=CheckedDevices())
    with pytest.raises(ProbeError, match="no probe can be run: rank 0: exit code 1"):
        it.measure(kind=GPUS)
    it.launcher.check = lambda run: "wait"
    with pytest.raises(ProbeError, match="rank 0 did not answer within 180 s"):
        it.measure(kind=GPUS)
    assert it.outcome(kind=GPUS, why=lambda: "stop") is Outcome.CANCELLED
    assert not it.ranks.alive

    def slow(run):
        it.clock.move(50.0)
        return "ok"

    it.launcher.check = slow
    found = it.measure(kind=GPUS)
    assert (found.outcome, found.wall_s < 50.0) == (Outcome.OK, True)


def test_memory_that_others_may_hold_is_looked_at_before_a_shortage_is_believed(warm):
    # 95 of 100 bytes in use and 10 more wanted would not have fitted anyhow; 80 and 10 would
    small = {**SHORTAGE, "allocated_bytes": 80, "reserved_bytes": 80}
    it = warm(always("oom"), checked=CheckedDevices())
    assert it.outcome(kind=GPUS) is Outcome.OOM
    it.launcher.act = lambda run, spec, number: {"outcome": "oom", "oom": small}
    it.launcher.check = lambda run: "crashed"
    with pytest.raises(ProbeError, match="no probe can be run: Error in forward: crashed"):
        it.measure(kind=GPUS)
    it.launcher.check = lambda run: "ok"
    assert it.outcome(kind=GPUS) is Outcome.OOM
    before = len(it.launcher.runs)
    it.launcher.act = OK
    assert it.outcome(kind=GPUS) is Outcome.OK  # on the ranks that looked
    assert len(it.launcher.runs) == before


def test_load_is_what_others_take_of_the_cores_that_ranks_may_use(monkeypatch):
    core = namedtuple("core", "user nice system idle iowait steal guest")
    cores = [core(10, 0, 0, 5, 5, 0, 9), core(0, 20, 0, 0, 0, 0, 0), core(99, 0, 0, 0, 0, 0, 0)]
    own = [2.0]
    ranks = [SimpleNamespace(cpu_times=lambda: (own[0], 0.0, 0.0, 1.0, 7.0))]
    monkeypatch.setattr(ranks_module.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(ranks_module.psutil, "cpu_times", lambda percpu: cores)
    worker = SimpleNamespace(children=lambda recursive: ranks, cpu_times=lambda: (1.0, 0, 0, 0))
    monkeypatch.setattr(ranks_module.psutil, "Process", lambda: worker)
    monkeypatch.setattr(ranks_module.time, "monotonic", lambda: now)
    now = 100.0
    load = OtherLoad()
    cores[:2], own[0], now = [core(14, 0, 1, 5, 9, 1, 14), core(1, 22, 0, 0, 0, 0, 0)], 5.0, 110.0
    # 9 seconds of both cores in 10, of which a rank had 3
    monkeypatch.setattr(ranks_module, "is_rationed", lambda: False)
    assert load.cores() == {"cores": 2, "cores_of_others": 0.6}
    monkeypatch.setattr(ranks_module, "is_rationed", lambda: True)  # others take none of a ration
    assert load.cores() == {}


def test_a_timed_probe_of_this_machine_has_the_load_beside_it(warm, monkeypatch):
    ours = LocalLauncher()
    of_others, found = warm(), warm()
    monkeypatch.setattr(LocalLauncher, "start", lambda self, job: found.launcher.start(job))
    monkeypatch.setattr(ranks_module, "is_rationed", lambda: False)
    found.ranks.launcher = ours
    assert found.measure().hardware["cores"] == usable_cores()
    assert "cores" not in of_others.measure().hardware
