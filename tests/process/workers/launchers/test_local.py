import json
import os
import time
from pathlib import Path

import psutil
import pytest

from tests.process.workers.launchers.contract import *  # noqa: F403
from tests.process.workers.launchers.contract import codes, finish
from workers.launchers.environment import rank_environment
from workers.launchers.local import (
    LocalLauncher,
    LocalRun,
)


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


@pytest.fixture
def nodes() -> int:
    return 1


@pytest.fixture
def supervisor() -> str:
    return "from workers.launchers.local import LocalLauncher; launcher = LocalLauncher()"


def gone(run: LocalRun) -> bool:
    return not any(psutil.pid_exists(pid) for pid in run.pids)


def test_ranks_share_a_process_group_of_their_own(make_job, eventually, tmp_path) -> None:
    run = LocalLauncher().start(make_job({"*": ["ready", "hang"]}))
    eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    groups = {os.getpgid(pid) for pid in run.pids}
    assert groups == {run.pids[0]}
    assert groups != {os.getpgrp()}
    run.cancel()


def test_a_leader_that_ends_at_once_does_not_keep_the_others_from_starting(
    make_job, monkeypatch
) -> None:
    start_rank = LocalRun._start_rank

    def after_the_leader(self, rank):
        start_rank(self, rank)
        while rank == 0 and psutil.Process(self.pids[0]).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)

    monkeypatch.setattr(LocalRun, "_start_rank", after_the_leader)
    job = make_job({"*": ["exit:3"]}, ranks=3, peer_grace_s=60.0)
    ended = finish(LocalLauncher().start(job))
    assert codes(ended) == [3, 3, 3]


def test_a_rank_that_is_done_does_not_end_one_that_is_not(make_job) -> None:
    script = {"0": ["ok"], "1": ["sleep:0.8", "ok"]}
    ended = finish(LocalLauncher().start(make_job(script, peer_grace_s=0.1)))
    assert codes(ended) == [0, 0]


def test_children_of_ranks_are_ended_at_a_deadline_too(make_job, tmp_path, eventually) -> None:
    script, pid = {"0": ["child", "say:ready", "hang"], "*": ["hang"]}, tmp_path / "child.pid"
    for deadline_s in (2.0, 10.0, 60.0):  # until it leaves the time to start the child
        run = LocalLauncher().start(make_job(script, deadline_s=deadline_s))
        finish(run)
        if "ready" in run.logs()[0]:
            break
    child = int(pid.read_text())
    dead = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() in dead)


def test_no_rank_is_left_when_a_later_one_cannot_start(
    make_job, monkeypatch, alive, tmp_path
) -> None:
    start_rank = LocalRun._start_rank

    def only_the_first(self, rank):
        if rank:
            raise BlockingIOError("no more processes")
        start_rank(self, rank)

    monkeypatch.setattr(LocalRun, "_start_rank", only_the_first)
    with pytest.raises(BlockingIOError):
        LocalLauncher().start(make_job({"*": ["hang"]}))
    assert not alive(str(tmp_path))


def test_no_file_descriptor_is_left_open(make_job) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    finish(LocalLauncher().start(make_job({"*": ["ok"]})))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_environment_of_ranks(make_job) -> None:
    run = LocalLauncher().start(make_job({"0": ["environment", "ok"], "1": ["ok"]}))
    finish(run)
    seen = json.loads(run.logs()[0])
    assert seen["RANK"] == seen["LOCAL_RANK"] == "0"
    assert seen["WORLD_SIZE"] == seen["LOCAL_WORLD_SIZE"] == "2"
    assert seen["GLOO_SOCKET_IFNAME"] == "lo"
    assert seen["HF_HUB_OFFLINE"] == seen["TRANSFORMERS_OFFLINE"] == "1"


def test_ranks_inherit_neither_secrets_nor_another_launchers_settings(make_job) -> None:
    inherited = {
        "PATH": "/bin",
        "TUNER_DB": "postgresql://u:secret@host/db",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "HF_TOKEN": "secret",
        "MASTER_ADDR": "elsewhere",
        "OMP_NUM_THREADS": "64",
    }
    environment = rank_environment(make_job({}, device="cuda", ranks=4096), 5, inherited)
    assert environment["PATH"] == "/bin"
    assert environment["RANK"] == "5"
    assert environment["OMP_NUM_THREADS"] == "1"
    dropped = inherited.keys() - {"PATH", "OMP_NUM_THREADS"}
    assert not dropped & environment.keys()
    assert "GLOO_SOCKET_IFNAME" not in environment


def test_a_rank_that_plays_one_of_many_has_its_share_of_the_cores(make_job, monkeypatch) -> None:
    monkeypatch.setattr("workers.launchers.environment.usable_cores", lambda: 16)
    for ranks, sharing, threads in ((1, 8, "2"), (1, None, "16"), (4, None, "4"), (1, 64, "1")):
        job = make_job({}, ranks=ranks, sharing=sharing)
        assert rank_environment(job, 0, {})["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("inherited", [{}, {"CUDA_VISIBLE_DEVICES": "3, 1"}])
def test_ranks_see_the_gpus_of_their_job_from_their_start(
    make_job, inherited: dict[str, str]
) -> None:
    alone = make_job({}, device="cuda", ranks=1, sharing=8, visible=("GPU-5c9d",))
    found = rank_environment(alone, 0, inherited)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("GPU-5c9d", "0")
    both = make_job({}, device="cuda", ranks=2, visible=("3", "1"))
    assert rank_environment(both, 1, inherited)["CUDA_VISIBLE_DEVICES"] == "3,1"
    found = rank_environment(make_job({}, device="cuda", ranks=2), 0, inherited)
    assert found.get("CUDA_VISIBLE_DEVICES") == inherited.get("CUDA_VISIBLE_DEVICES")
    for visible in ((), ("3",)):
        on_cpu = make_job({}, ranks=1, visible=visible)
        assert rank_environment(on_cpu, 0, inherited)["CUDA_VISIBLE_DEVICES"] == ""
