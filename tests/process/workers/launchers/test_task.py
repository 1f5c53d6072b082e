"""One rank as a task of a cluster's manager; the manager is stood in for by pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tuner.errors import ProbeError
from workers.launchers.base import NOT_STARTED, Job, end_ranks
from workers.launchers.task import ALIVE, STOP, RankTask, first_visible, read_end

Task = subprocess.Popen[bytes]


@pytest.fixture
def start(tmp_path):
    """Start the program as srun does."""
    started = []

    def start(job, rank=0):
        file = tmp_path / "job.json"
        file.write_text(json.dumps({"job": job.as_dict(), "addresses": {"n1": "10.0.0.1"}}))
        place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n1"}
        argv = [sys.executable, "-P", "-m", "workers.launchers.task", str(file)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, stdin=pipe, stderr=pipe, env={**os.environ, **place}))
        return started[-1]

    yield start
    for task in started:
        task.kill()
        for stream in (task.stdin, task.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        task.wait()


def say(task, what):
    task.stdin.write(what)
    task.stdin.flush()


def told(path, rank=0):
    found = read_end(path, rank)
    return found.code, found.stopped


def test_a_rank_has_its_place_and_its_end_is_told(start, make_job, tmp_path):
    job = make_job({"1": ["environment:RANK,LOCAL_RANK,MASTER_ADDR", "exit:7"]}, nodes=2)
    assert start(job, rank=1).wait(60) == 0
    assert told(tmp_path, 1) == (7, False)
    seen = json.loads((tmp_path / "rank-00001.log").read_text())
    assert seen == {"RANK": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1"}


def test_its_supervisor_ends_it(start, make_job, tmp_path, eventually):
    task = start(make_job({"*": ["ready", "hang"]}))
    eventually(lambda: (tmp_path / "ready-0").exists())
    say(task, ALIVE + STOP)
    assert task.wait(60) == 0
    assert told(tmp_path) == (-signal.SIGTERM, True)


def test_it_ends_with_its_supervisor(start, make_job, tmp_path, eventually):
    task = start(make_job({"*": ["deaf", "ready", "hang"]}))
    eventually(lambda: (tmp_path / "ready-0").exists())
    task.stdin.close()
    assert task.wait(60) == 0
    assert told(tmp_path) == (-signal.SIGKILL, True)


def test_it_lives_while_it_is_fed(start, make_job, tmp_path, eventually):
    for silence_s in (1.5, 10.0, 60.0):  # until nothing holds up who feeds it for so long
        name = f"silence-{silence_s:.0f}"
        task = start(make_job({"*": ["ready", "hang"]}, silence_s=silence_s, name=name))
        folder = tmp_path / name
        eventually(lambda: list(folder.glob("ready-0")) or task.poll() is not None)  # noqa: B023
        until = time.monotonic() + silence_s + 1.0
        while time.monotonic() < until and task.poll() is None:
            say(task, ALIVE)
            time.sleep(0.25)
        if task.poll() is None:
            break
    assert task.poll() is None
    assert task.wait(silence_s + 60) == 0  # and not without
    assert told(folder) == (111, False)


def test_a_program_that_is_not_there(make_job, tmp_path):
    task = RankTask(make_job({}, argv=("/nonexistent/program",)), 0)
    task.start()
    end = task.poll()
    assert end.code == NOT_STARTED
    assert not end.stopped
    assert "/nonexistent/program" in (tmp_path / "rank-00000.log").read_text()
    assert end_ranks([task]) == [end]


def test_one_that_cannot_be_killed_spares_no_other(make_job, tmp_path, eventually, monkeypatch):
    job = make_job({"*": ["deaf", "ready", "hang"]}, nodes=2, term_grace_s=0.1)
    tasks = [RankTask(job, rank) for rank in (0, 1)]
    for task in tasks:
        task.start()
    eventually(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)))

    def never(timeout):
        raise subprocess.TimeoutExpired("rank", timeout)

    monkeypatch.setattr(tasks[0]._process, "wait", never)
    with pytest.raises(ProbeError, match="cannot be killed"):
        end_ranks(tasks)
    monkeypatch.undo()
    eventually(lambda: tasks[1].poll() is not None)
    assert tasks[1].poll().code == -signal.SIGKILL
    assert tasks[0].kill().code == -signal.SIGKILL


def test_a_job_is_the_same_after_json(make_job):
    for job in (make_job({"*": []}, nodes=2), make_job({}, deadline_s=float("inf"), sharing=3)):
        assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job


@pytest.mark.parametrize(
    ("visible", "count", "shown"),
    [(None, 2, "0,1"), ("3,1,2", 2, "3,1"), ("GPU-1", 2, "GPU-1"), ("", 1, "")],
)
def test_ranks_see_as_many_gpus_as_they_are_on_their_node(visible, count, shown):
    assert first_visible(visible, count) == shown
