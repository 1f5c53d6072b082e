"""What every launcher does. Its tests import these, and have fixtures of their own:

- ``launcher``: the launcher;
- ``nodes``: over how many nodes the two ranks of a job are spread;
- ``supervisor``: source of Python that sets ``launcher`` in a process of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from uuid import uuid4

import pytest

from workers.launchers.base import Why
from workers.measuring.ranks import Kind, WarmRanks

SUPERVISOR = """
import json, sys, time
from pathlib import Path
from workers.launchers.base import Job
{launcher}
run = launcher.start(Job.from_dict(json.loads(Path(sys.argv[1]).read_text())))
told = False
while run.poll() is None:
    if not told and all("ready" in text for text in run.logs().values()):
        told = True
        print("ready", flush=True)
    time.sleep(0.05)
"""
# What a real cluster shows of it in a minute: the rest is for Slurm and Ray before a release.
ON_CLUSTERS = (
    "test_ranks_that_end_well",
    "test_cancel_returns_when_nothing_is_left",
    "test_ranks_follow_one_order_after_another",
    "test_nothing_is_left_when_the_supervisor_is_killed",
)
PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
SECRETS = ("TUNER_DB", "HF_TOKEN", "ACCELERATE_USE_FSDP")


def mark_long(item):
    """Leaves to ``make test-long`` what a cluster need not show each time."""
    if item.function.__module__ == __name__ and item.originalname not in ON_CLUSTERS:
        item.add_marker(pytest.mark.long)


@pytest.fixture
def marker():
    """Stands in the command line of ranks, and in no other."""
    return f"mark-{uuid4().hex}"


@pytest.fixture
def make(make_job, marker, nodes):
    """A job of two ranks over the launcher's nodes."""

    def make(script, **fields):
        return make_job({**script, marker: []}, **{"nodes": nodes, "term_grace_s": 1.0, **fields})

    return make


@pytest.fixture
def supervise(make, supervisor, tmp_path):
    """A process that supervises two ranks that hang, and says when they are ready."""
    started = []

    def start(silence_s):
        name, script = f"supervised-{len(started)}", {"*": ["deaf", "say:ready", "hang"]}
        job = make(script, silence_s=silence_s, deadline_s=600.0, name=name)
        file = tmp_path / "job-of-test.json"
        file.write_text(json.dumps(job.as_dict()))
        source = SUPERVISOR.format(launcher=supervisor)
        argv = [sys.executable, "-P", "-c", source, str(file)]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(run):
    while (ended := run.poll()) is None:
        time.sleep(0.01)
    return ended


def codes(ended):
    return [rank.code for rank in ended.ranks]


def is_ready(supervisor):
    """Whether a process of ``supervise`` has ranks that are ready; waits until it has, or ends."""
    return supervisor.stdout.readline() == "ready\n"


def wait_for_ready(run):
    """Poll until all ranks have said so."""
    until = time.monotonic() + 120
    while not all("ready" in text for text in run.logs().values()):
        assert run.poll() is None, run.logs()
        assert time.monotonic() < until, run.logs()
        time.sleep(0.02)


@pytest.mark.smoke
def test_ranks_that_end_well(launcher, make, alive, marker):
    run = launcher.start(make({"*": ["ok"]}))
    ended = finish(run)
    assert ended.why is Why.ENDED
    assert codes(ended) == [0, 0]
    assert [rank.rank for rank in ended.ranks] == [0, 1]
    assert not any(rank.stopped for rank in ended.ranks)
    assert ended.wall_s > 0
    assert not alive(marker)
    assert run.poll() is ended
    assert run.cancel() is ended


@pytest.mark.smoke
def test_exit_codes_and_signals_are_seen(launcher, make):
    script = {"0": ["exit:7"], "1": ["signal:SIGSEGV"]}
    ended = finish(launcher.start(make(script, peer_grace_s=60.0)))
    assert ended.why is Why.ENDED
    assert codes(ended) == [7, -signal.SIGSEGV]


@pytest.mark.parametrize("end", ["exit:7", "exit:0", "oom", "signal:SIGKILL"])
@pytest.mark.smoke
def test_others_that_hang_after_a_failure_are_ended(launcher, make, alive, marker, end):
    ended = finish(launcher.start(make({"0": [end], "1": ["hang"]}, term_grace_s=60.0)))
    assert ended.why is Why.PEER_FAILED
    assert [rank.stopped for rank in ended.ranks] == [False, True]
    assert ended.ranks[1].code == -signal.SIGTERM
    assert not alive(marker)


def test_others_get_a_grace_for_their_own_records(launcher, make, tmp_path):
    script = {"0": ["oom"], "1": ["sleep:0.3", "communication_error"]}
    ended = finish(launcher.start(make(script, peer_grace_s=60.0)))
    assert ended.why is Why.ENDED
    assert codes(ended) == [10, 10]
    assert (tmp_path / "rank-00001.json").exists()


def test_the_deadline_ends_even_what_ignores_sigterm(launcher, make, alive, marker):
    for deadline_s in (2.0, 10.0, 60.0):  # until it leaves them the time to become deaf
        script = {"*": ["deaf", "say:ready", "hang"]}
        run = launcher.start(make(script, deadline_s=deadline_s, name=f"until-{deadline_s:.0f}-s"))
        ended = finish(run)
        assert ended.why is Why.DEADLINE
        assert all(rank.stopped for rank in ended.ranks)
        assert ended.wall_s > deadline_s
        assert not alive(marker)
        if all("ready" in text for text in run.logs().values()):
            break
    assert codes(ended) == [-signal.SIGKILL, -signal.SIGKILL]


def test_cancel_returns_when_nothing_is_left(launcher, make, alive, marker):
    run = launcher.start(make({"*": ["say:ready", "hang"]}))
    wait_for_ready(run)
    ended = run.cancel()
    assert ended.why is Why.CANCELLED
    assert all(rank.stopped for rank in ended.ranks)
    assert not alive(marker)


def test_children_of_ranks_are_ended_too(launcher, make, alive, eventually):
    child = uuid4().hex
    finish(launcher.start(make({"0": [f"child:{child}", "ok"], "1": ["ok"]})))
    eventually(lambda: not alive(f"# {child}"))


def test_logs_hold_both_streams_and_their_end(launcher, make):
    run = launcher.start(make({"0": ["say:one", "say:two", "ok"], "1": ["ok"]}))
    finish(run)
    assert run.logs() == {0: "one\ntwo\n", 1: ""}


def test_ranks_know_their_place_and_no_secret(launcher, make, nodes, monkeypatch):
    monkeypatch.setenv("TUNER_DB", "postgresql://u:secret@host/db")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    run = launcher.start(make({"*": [f"environment:{','.join((*PLACE, *SECRETS))}", "ok"]}))
    finish(run)
    for rank, log in run.logs().items():
        seen = json.loads(log)
        assert (seen["RANK"], seen["WORLD_SIZE"]) == (str(rank), "2")
        assert seen["LOCAL_RANK"] == ("0" if nodes == 2 else str(rank))
        assert seen["LOCAL_WORLD_SIZE"] == str(2 // nodes)
        assert ("MASTER_ADDR" in seen) == (nodes > 1)
        assert not {*SECRETS} & seen.keys()


def test_ranks_follow_one_order_after_another(launcher, stand_in_argv, nodes, tmp_path):
    kind = Kind(ranks=2, world_size=2, device="cpu", nodes=nodes)
    script = {"*@1": ["ok"], "*@2": ["say:second", "ok"], "*@3": ["oom"]}

    def pause(seconds):
        time.sleep(seconds)
        return ""

    with WarmRanks(
        launcher=launcher, argv=lambda out: stand_in_argv(out, script), folder=tmp_path
    ) as ranks:
        found = [ranks.measure(kind, {}, deadline_s=120.0, pause=pause) for _ in range(3)]
        assert not ranks.alive
    assert [one.measurement.outcome for one in found] == ["ok", "ok", "oom"]
    assert {len(one.records) for one in found} == {2}


def test_nothing_is_left_when_the_supervisor_is_killed(supervise, alive, eventually, marker):
    process = supervise(600.0)
    assert is_ready(process)
    assert len(alive(marker)) == 2
    process.kill()
    process.wait()
    eventually(lambda: not alive(marker))


def test_ranks_end_when_the_supervisor_is_stopped_but_not_while_it_feeds_them(
    supervise, alive, eventually, marker
):
    for silence_s in (2.5, 10.0, 40.0):  # until nothing else holds it up for so long
        process = supervise(silence_s)
        if is_ready(process):
            time.sleep(silence_s + 1.0)
        if len(alive(marker)) == 2:
            break
        process.kill()
        eventually(lambda: not alive(marker))
    assert len(alive(marker)) == 2
    os.kill(process.pid, signal.SIGSTOP)
    eventually(lambda: not alive(marker), silence_s + 60.0)
