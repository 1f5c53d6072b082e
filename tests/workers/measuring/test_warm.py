"""Ranks that stay for the next probe, played by stand-ins: who runs what, and when ranks end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.errors import ProbeError
from tuner.measurement import Fidelity, Outcome
from workers.launchers.base import Job, Run
from workers.launchers.local import LocalLauncher
from workers.measuring.warm import Kind, Probed, WarmRanks

TWO = Kind(ranks=2, world_size=2, device="cpu")
SPEC = {"probe": 1}
Script = dict[str, list[str]]


class Starts:
    """A launcher that remembers what it started."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.pids: list[tuple[int, ...]] = []

    def start(self, job: Job) -> Run:
        run = LocalLauncher().start(job)
        self.jobs.append(job)
        self.pids.append(run.pids)
        return run


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def warm(
    tmp_path: Path, starts: Starts, stand_in_argv: Callable[..., tuple[str, ...]]
) -> Iterator[Callable[..., WarmRanks]]:
    """``warm(script)``: ranks that do what it says."""
    opened: list[WarmRanks] = []

    def make(script: Script, **options: object) -> WarmRanks:
        argv = lambda out: stand_in_argv(out, script)  # noqa: E731
        folder = tmp_path / "probes"
        ranks = WarmRanks(launcher=starts, argv=argv, folder=folder, **options)
        opened.append(ranks.__enter__())
        return ranks

    yield make
    for ranks in opened:
        ranks.__exit__(None, None, None)
    assert not list((tmp_path / "probes").glob("*"))


def measure(
    ranks: WarmRanks,
    *,
    kind: Kind = TWO,
    deadline_s: float = 120.0,
    why: Callable[[], str] = str,
) -> Probed:
    def pause(seconds: float) -> str:
        time.sleep(seconds)
        return why()

    return ranks.measure(kind, SPEC, deadline_s=deadline_s, pause=pause)


def outcome(ranks: WarmRanks, **given: object) -> Outcome:
    return measure(ranks, **given).measurement.outcome


def test_probes_of_one_kind_share_ranks(warm, starts) -> None:
    ranks = warm({"*": ["ok"]})
    found = [measure(ranks).measurement for _ in range(2)]
    began = time.monotonic()
    found.append(measure(ranks).measurement)
    assert found[2].wall_s <= time.monotonic() - began  # from its own order
    assert [one.outcome for one in found] == [Outcome.OK] * 3
    assert [one.memory.allocated_bytes for one in found] == [1001] * 3
    assert len(starts.jobs) == 1
    assert ranks.alive
    assert found[0].device_s == 2 * found[0].wall_s


def test_another_kind_has_its_own(warm, starts) -> None:
    ranks = warm({"*": ["ok"]})
    emulated = Kind(ranks=1, world_size=8, device="cpu", fidelity=Fidelity.EMULATED, sharing=8)
    for kind in (TWO, emulated, emulated, TWO):
        assert outcome(ranks, kind=kind) is Outcome.OK
    assert [(job.ranks, job.sharing) for job in starts.jobs] == [(2, None), (1, 8), (2, None)]


def test_ranks_stay_after_a_probe_that_ended_early(warm, starts) -> None:
    ranks = warm({"*": ["ok"], "*@2": ["stopped_early"]})
    found = [measure(ranks).measurement for _ in range(3)]
    assert [one.outcome for one in found] == [Outcome.OK, Outcome.STOPPED_EARLY, Outcome.OK]
    assert found[1].memory == found[0].memory
    assert found[1].step_times_s == {1: (0.2, 0.2)}
    assert not found[1].log_tails
    assert len(starts.jobs) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"*@2": ["oom"]}, Outcome.OOM),
        ({"0@2": ["oom"], "1@2": ["hang"]}, Outcome.OOM),
        ({"0@2": ["non_finite"], "1@2": ["hang"]}, Outcome.NON_FINITE),
        ({"1@2": ["signal:SIGKILL"], "0@2": ["hang"]}, Outcome.CRASHED),
        ({"1@2": ["exit:3"]}, Outcome.CRASHED),
        ({"0@2": ["cut"]}, Outcome.CRASHED),
        ({"0@2": ["crashed"], "1@2": ["communication_error"]}, Outcome.CRASHED),
    ],
)
def test_what_is_not_ok_is_told_and_the_next_probe_has_new_ranks(
    warm, starts, words, expected
) -> None:
    ranks = warm({"*": ["ok"], **words})
    assert [outcome(ranks) for _ in range(3)] == [Outcome.OK, expected, Outcome.OK]
    assert len(starts.jobs) == 2


def test_devices_are_looked_at_after_one_was_lost(
    warm, starts, stand_in_argv: Callable[..., tuple[str, ...]]
) -> None:
    looks: list[str] = []

    def check(place: Path, device: str) -> tuple[str, ...]:
        looks.append(device)
        return stand_in_argv(place, {"*": ["ok"]} if len(looks) > 1 else {"1": ["device_lost"]})

    words = {"*": ["ok"], "1@2": ["device_lost"], "0@2": ["hang"]}
    ranks = warm(words, check_argv=check)
    assert [outcome(ranks) for _ in range(2)] == [Outcome.OK, Outcome.DEVICE_LOST]
    with pytest.raises(ProbeError, match=r"is not there again: rank 1's: Error: device_lost"):
        measure(ranks)
    assert not ranks.alive
    assert outcome(ranks) is Outcome.OK
    assert outcome(ranks, kind=replace(TWO, world_size=4)) is Outcome.OK
    assert looks == ["cpu"] * 2  # until it is there, and not again
    assert [job.ranks for job in starts.jobs] == [2] * 5


def test_a_look_at_devices_is_no_time_of_the_probe_after_it(
    warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def look(*_: object) -> str:
        looks.append(1000.0)
        return ""

    later = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(looks), time=time.time)
    monkeypatch.setattr("workers.measuring.warm.why_unusable", look)
    monkeypatch.setattr("workers.measuring.warm.time", later)
    ranks = warm({"*": ["ok"], "*@2": ["device_lost"]})
    assert [outcome(ranks) for _ in range(2)] == [Outcome.OK, Outcome.DEVICE_LOST]
    found = measure(ranks, deadline_s=500.0).measurement
    assert looks
    assert found.outcome is Outcome.OK
    assert found.wall_s < looks[0]


def test_a_look_that_is_given_up_is_made_again(
    warm, stand_in_argv: Callable[..., tuple[str, ...]]
) -> None:
    looks: list[str] = []

    def check(place: Path, device: str) -> tuple[str, ...]:
        looks.append(device)
        return stand_in_argv(place, {"*": ["ok" if len(looks) > 1 else "hang"]})

    ranks = warm({"*": ["ok"], "*@1": ["device_lost"]}, check_argv=check, keep=False)
    assert outcome(ranks) is Outcome.DEVICE_LOST
    assert outcome(ranks, why=lambda: "stop") is Outcome.CANCELLED
    assert outcome(ranks) is Outcome.DEVICE_LOST
    assert len(looks) == 2


def test_a_rank_that_hangs_passes_its_own_deadline(warm, starts) -> None:
    ranks = warm({"*": ["ok"], "1@2": ["hang"]})
    for deadline_s in (0.4, 10.0, 60.0):  # until it leaves the other one the time to be done
        assert outcome(ranks) is Outcome.OK
        late = measure(ranks, deadline_s=deadline_s).measurement
        assert late.outcome is Outcome.TIMEOUT
        if late.detail.startswith("rank 1 "):
            break
    assert late.detail == f"rank 1 not done after {deadline_s:.0f} s"
    before = len(starts.jobs)
    assert outcome(ranks) is Outcome.OK
    assert len(starts.jobs) == before + 1


def test_a_record_that_is_cut_short_is_named(warm) -> None:
    found = measure(warm({"*": ["ok"], "1": ["cut"]})).measurement
    assert found.detail == "rank 1 ended with exit code 0; its record is not JSON, or cut short"


def test_memory_that_stays_behind_wants_new_ranks(warm, starts) -> None:
    ranks = warm({"*": ["ok"], "0@1": ["spent", "ok"]})
    assert [outcome(ranks) for _ in range(2)] == [Outcome.OK] * 2
    assert len(starts.jobs) == 2


def test_ranks_that_end_between_probes_are_replaced(warm, starts, eventually) -> None:
    ranks = warm({"*": ["ok"]})
    assert outcome(ranks) is Outcome.OK
    os.kill(starts.pids[0][1], signal.SIGKILL)
    eventually(lambda: not ranks.alive)
    assert outcome(ranks) is Outcome.OK
    assert len(starts.jobs) == 2


def test_a_probe_that_is_given_up(warm, starts) -> None:
    ranks = warm({"*": ["ok"], "*@2": ["hang"]})
    assert outcome(ranks) is Outcome.OK
    assert outcome(ranks, why=lambda: "stop") is Outcome.CANCELLED
    assert not ranks.alive


def test_an_error_leaves_no_rank(warm, alive, tmp_path) -> None:
    ranks = warm({"*": ["hang"]})

    def fail() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(ranks, why=fail)
    assert not ranks.alive
    assert not alive(str(tmp_path))


def test_what_a_rank_says_is_of_its_own_probe(warm) -> None:
    ranks = warm({"*": ["say:one", "ok"], "*@2": ["say:two", "oom"]})
    assert measure(ranks).measurement.log_tails == {}
    assert measure(ranks).measurement.log_tails == {0: "two\n", 1: "two\n"}


def test_idle_ranks_are_fed_and_ended_when_idle_for_long(warm, starts, alive, eventually) -> None:
    for idle_s in (1.5, 15.0, 60.0):  # until nothing holds up the look at them for so long
        ranks = warm({"*": ["ok"]}, idle_s=idle_s)
        assert outcome(ranks) is Outcome.OK
        time.sleep(idle_s - 0.5)
        if ranks.alive:
            break
    assert ranks.alive
    eventually(lambda: not ranks.alive)
    eventually(lambda: not alive(str(starts.jobs[-1].directory)))
    assert outcome(ranks) is Outcome.OK


def test_ranks_that_would_not_bear_silence_live_while_idle(
    tmp_path, starts, stand_in_argv, alive
) -> None:
    for silence_s in (1.5, 8.0, 20.0):  # until nothing holds up who feeds them for so long
        argv = lambda out, s=silence_s: stand_in_argv(out, {"*": ["ok"]}, s)  # noqa: E731
        starts.jobs.clear()
        with WarmRanks(launcher=starts, argv=argv, folder=tmp_path) as ranks:
            outcomes = [outcome(ranks)]
            time.sleep(max(3.0, silence_s + 1.0))
            is_alive = ranks.alive
            outcomes.append(outcome(ranks))
        assert not alive(str(tmp_path))
        if is_alive and len(starts.jobs) == 1:
            break
    assert is_alive
    assert outcomes == [Outcome.OK] * 2
    assert len(starts.jobs) == 1


def test_cold_ranks_are_new_for_each_probe(warm, starts) -> None:
    ranks = warm({"*": ["ok"], "*@2": ["hang"]}, keep=False)
    assert [outcome(ranks) for _ in range(2)] == [Outcome.OK] * 2
    assert len(starts.jobs) == 2
    assert not ranks.alive


def test_a_program_that_cannot_be_started(tmp_path) -> None:
    with WarmRanks(argv=lambda out: ("/nonexistent",), folder=tmp_path) as ranks:
        found = measure(ranks)
    assert found.measurement.outcome is Outcome.CRASHED
    assert "could not be started" in found.measurement.detail
    assert found.records == ()
    assert not list(tmp_path.iterdir())


SUPERVISOR = """
import json, sys, time
from pathlib import Path
from workers.measuring.warm import Kind, WarmRanks
out, argv = Path(sys.argv[1]), json.loads(sys.argv[2])
with WarmRanks(argv=lambda place: (*argv[:3], str(place), *argv[4:]), folder=out) as ranks:
    kind = Kind(ranks=2, world_size=2, device="cpu")
    ranks.measure(kind, {}, deadline_s=120, pause=lambda s: time.sleep(s) or "")
    (out / "idle").touch()
    time.sleep(600)
"""


def test_kill_leaves_no_idle_rank(tmp_path, stand_in_argv, alive, eventually) -> None:
    argv = json.dumps(stand_in_argv(tmp_path, {"*": ["ok"]}))
    command = [sys.executable, "-P", "-c", SUPERVISOR, str(tmp_path), argv]
    with subprocess.Popen(command) as supervisor:
        eventually((tmp_path / "idle").exists)
        assert len(alive(str(tmp_path))) == 3
        supervisor.kill()
    eventually(lambda: not alive(str(tmp_path)))
