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

import pytest

from tuner.core.measurement import Fidelity, Outcome
from tuner.errors import ProbeError
from workers.launchers.base import Job, Run
from workers.launchers.local import LocalLauncher
from workers.measuring.ranks import CheckedDevices, Kind, Probed, WarmRanks

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


GPUS = Kind(ranks=2, world_size=2, device="cuda")


def test_devices_are_looked_at_after_one_was_lost(warm, starts) -> None:
    words = {"*": ["ok"], "1@2": ["device_lost"], "0@2": ["hang"], "1@check": ["device_lost"]}
    ranks = warm(words)
    assert [outcome(ranks) for _ in range(2)] == [Outcome.OK, Outcome.DEVICE_LOST]
    with pytest.raises(ProbeError, match=r"is not there again: Error: device_lost \(rank 1\)"):
        measure(ranks)
    assert not ranks.alive
    words["1@check"] = ["ok"]
    assert outcome(ranks) is Outcome.OK
    words["1@check"] = ["device_lost"]  # until it is there, and not again
    assert outcome(ranks, kind=replace(TWO, world_size=4)) is Outcome.OK
    assert [job.ranks for job in starts.jobs] == [2] * 4


def test_gpus_are_looked_at_before_the_first_probe_and_by_the_same_ranks(warm, starts) -> None:
    words = {"*": ["ok"], "*@check": ["say:looks", "ok"]}
    checked = CheckedDevices()
    ranks = warm(words, checked=checked)
    assert [outcome(ranks, kind=GPUS) for _ in range(2)] == [Outcome.OK] * 2
    assert len(starts.jobs) == 1
    words["*@check"] = ["crashed"]
    again = warm(words, checked=checked)  # of another study, a short while later
    assert outcome(again, kind=GPUS) is Outcome.OK
    with pytest.raises(ProbeError, match="no probe can be run: Error: crashed"):
        outcome(again, kind=replace(GPUS, visible=("GPU-b", "GPU-c")))  # other ones
    assert not again.alive
    assert outcome(warm(words, checked=CheckedDevices())) is Outcome.OK  # of a CPU
    assert outcome(warm(words), kind=GPUS) is Outcome.OK  # nobody wants them looked at


def test_a_failing_look_is_no_outcome_of_a_probe(warm, starts) -> None:
    words = {"*": ["ok"], "0@check": ["until:never"], "1@check": ["say:no library", "exit:1"]}
    ranks = warm(words, checked=CheckedDevices())
    with pytest.raises(ProbeError, match="no probe can be run: rank 1: no library"):
        measure(ranks, kind=GPUS)
    assert not ranks.alive
    words |= {"0@check": ["ok"], "1@check": ["ok"]}
    assert outcome(ranks, kind=GPUS) is Outcome.OK  # it was looked at again


def test_memory_that_others_may_hold_is_looked_at_before_a_shortage_is_believed(
    warm, starts
) -> None:
    # 95 of 100 bytes in use and 10 more wanted would not have fitted anyhow; 80 and 10 would
    small = {"phase": "forward", "requested_bytes": 10, "allocated_bytes": 80,
             "reserved_bytes": 80, "limit_bytes": 100}  # fmt: skip
    words = {"*": ["ok"], "*@1": ["oom"]}
    ranks = warm(words, checked=CheckedDevices())
    assert outcome(ranks, kind=GPUS) is Outcome.OOM
    words["*@check"] = ["crashed"]
    words["*@1"] = [f"shortage:{json.dumps(small)}"]
    ranks = warm(words, checked=ranks.checked)
    with pytest.raises(ProbeError, match="no probe can be run: Error: crashed"):
        measure(ranks, kind=GPUS)
    words["*@check"] = ["ok"]
    before = len(starts.jobs)
    assert outcome(ranks, kind=GPUS) is Outcome.OOM
    words["*@1"] = ["ok"]
    assert outcome(ranks, kind=GPUS) is Outcome.OOM  # of the ranks that looked
    assert len(starts.jobs) == before + 3


def test_a_look_at_devices_is_no_time_of_the_probe_after_it(warm) -> None:
    looks = 1.5
    words = {"*": ["ok"], "*@check": [f"sleep:{looks}", "ok"]}
    began = time.monotonic()
    found = measure(warm(words, checked=CheckedDevices()), kind=GPUS).measurement
    assert found.outcome is Outcome.OK
    assert found.wall_s <= time.monotonic() - began - looks


def test_a_look_that_is_given_up_is_made_again(warm, alive, tmp_path) -> None:
    words = {"*": ["ok"], "*@1": ["device_lost"], "*@check": ["hang"]}
    ranks = warm(words, keep=False)
    assert outcome(ranks) is Outcome.DEVICE_LOST
    assert outcome(ranks, why=lambda: "stop") is Outcome.CANCELLED
    assert not ranks.alive
    assert not alive(str(tmp_path))
    words["*@check"] = ["ok"]
    assert outcome(ranks) is Outcome.DEVICE_LOST


def test_a_device_that_hangs_is_not_well(warm, monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline_s in (1.0, 10.0, 60.0):  # until it leaves the other one the time to answer
        monkeypatch.setattr("workers.measuring.ranks.CHECK_DEADLINE_S", deadline_s)
        ranks = warm({"*": ["ok"], "1@check": ["hang"]}, checked=CheckedDevices())
        with pytest.raises(ProbeError) as raised:
            measure(ranks, kind=GPUS)
        if "rank 1 did not answer" in str(raised.value):
            break
    assert "rank 1 did not answer within" in str(raised.value)
    assert not ranks.alive


def test_all_ranks_tell_what_they_found(warm) -> None:
    ranks = warm({"*": ["ok"], "1@check": ["crashed"]})
    found = ranks.look(GPUS, lambda seconds: time.sleep(seconds) or "")
    assert found is not None
    assert found.why_unusable.startswith("Error: crashed")
    assert [one["device"] for one in found.found] == ["cpu", "cpu"]


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
from workers.measuring.ranks import CheckedDevices
from workers.measuring.ranks import Kind, WarmRanks
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
