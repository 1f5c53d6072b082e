import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from workers.launchers.base import Ended, RankEnd, Why
from workers.launchers.local import (
    LocalLauncher,
    LocalRun,
    probe_argv,
    rank_environment,
)

SUPERVISOR = """
import sys, time
from pathlib import Path
from workers.launchers.base import Job
from workers.launchers.local import LocalLauncher
out, *argv = sys.argv[1:]
job = Job(argv=tuple(argv), directory=Path(out), ranks=2, device="cpu", deadline_s=60)
run = LocalLauncher().start(job)
while run.poll() is None:
    time.sleep(0.05)
"""


def finish(run: LocalRun) -> Ended:
    while (ended := run.poll()) is None:
        time.sleep(0.01)
    return ended


def codes(ended: Ended) -> list[int]:
    return [rank.code for rank in ended.ranks]


def gone(run: LocalRun) -> bool:
    return not any(psutil.pid_exists(pid) for pid in run.pids)


def test_ranks_that_end_well(make_job) -> None:
    run = LocalLauncher().start(make_job({"*": ["ok"]}))
    ended = finish(run)
    assert ended.why is Why.ENDED
    assert codes(ended) == [0, 0]
    assert not any(rank.stopped for rank in ended.ranks)
    assert 0 < ended.wall_s < 20
    assert gone(run)
    assert run.poll() is ended
    assert run.cancel() is ended


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
    ended = finish(LocalLauncher().start(make_job({"*": ["exit:3"]}, ranks=3)))
    assert codes(ended) == [3, 3, 3]


def test_exit_codes_and_signals_are_seen(make_job) -> None:
    ended = finish(LocalLauncher().start(make_job({"0": ["exit:7"], "1": ["signal:SIGSEGV"]})))
    assert codes(ended) == [7, -signal.SIGSEGV]


@pytest.mark.parametrize("end", ["exit:7", "exit:0", "oom", "signal:SIGKILL"])
def test_others_that_hang_after_a_failure_are_ended(make_job, end) -> None:
    run = LocalLauncher().start(make_job({"0": [end], "1": ["hang"]}))
    ended = finish(run)
    assert ended.why is Why.PEER_FAILED
    assert [rank.stopped for rank in ended.ranks] == [False, True]
    assert ended.ranks[1].code == -signal.SIGTERM
    assert gone(run)


def test_others_get_a_grace_for_their_own_records(make_job, tmp_path) -> None:
    script = {"0": ["oom"], "1": ["sleep:0.3", "communication_error"]}
    ended = finish(LocalLauncher().start(make_job(script, peer_grace_s=10)))
    assert ended.why is Why.ENDED
    assert codes(ended) == [10, 10]
    assert (tmp_path / "rank-00001.json").exists()


def test_a_rank_that_is_done_does_not_end_one_that_is_not(make_job) -> None:
    script = {"0": ["ok"], "1": ["sleep:0.8", "ok"]}
    ended = finish(LocalLauncher().start(make_job(script, peer_grace_s=0.1)))
    assert codes(ended) == [0, 0]


def test_the_deadline_ends_even_what_ignores_sigterm(make_job) -> None:
    run = LocalLauncher().start(make_job({"*": ["deaf", "hang"]}, deadline_s=1.0))
    ended = finish(run)
    assert ended.why is Why.DEADLINE
    assert codes(ended) == [-signal.SIGKILL, -signal.SIGKILL]
    assert 1.0 < ended.wall_s < 5
    assert gone(run)


def test_cancel_returns_when_nothing_is_left(make_job, tmp_path, eventually) -> None:
    run = LocalLauncher().start(make_job({"*": ["ready", "hang"]}))
    eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    ended = run.cancel()
    assert ended.why is Why.CANCELLED
    assert all(rank.stopped for rank in ended.ranks)
    assert gone(run)


@pytest.mark.parametrize("last", ["hang", "ok"])
def test_children_of_ranks_are_ended_too(make_job, tmp_path, eventually, last) -> None:
    run = LocalLauncher().start(make_job({"0": ["child", last], "*": [last]}, deadline_s=2.0))
    finish(run)
    child = int((tmp_path / "child.pid").read_text())
    dead = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() in dead)


def test_logs_hold_both_streams_and_their_end(make_job) -> None:
    run = LocalLauncher().start(make_job({"0": ["say:one", "say:two", "ok"], "1": ["ok"]}))
    finish(run)
    assert run.logs() == {0: "one\ntwo\n", 1: ""}


def test_a_program_that_is_not_there(make_job) -> None:
    job = make_job({}, argv=("/nonexistent/program",))
    with pytest.raises(FileNotFoundError):
        LocalLauncher().start(job)


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


def supervise(tmp_path, stand_in_argv, silence_s: float) -> subprocess.Popen[bytes]:
    argv = stand_in_argv(tmp_path, {"*": ["deaf", "ready", "hang"]}, silence_s)
    return subprocess.Popen([sys.executable, "-P", "-c", SUPERVISOR, str(tmp_path), *argv])


def ranks_ready(tmp_path: Path) -> bool:
    return len(list(tmp_path.glob("ready-*"))) == 2


def test_nothing_is_left_when_the_supervisor_is_killed(
    tmp_path, stand_in_argv, alive, eventually
) -> None:
    supervisor = supervise(tmp_path, stand_in_argv, 20.0)
    eventually(lambda: ranks_ready(tmp_path))
    assert len(alive(str(tmp_path))) == 3
    supervisor.kill()
    supervisor.wait()
    eventually(lambda: not alive(str(tmp_path)), 3.0)


def test_ranks_end_when_the_supervisor_is_stopped_but_not_while_it_feeds_them(
    tmp_path, stand_in_argv, alive, eventually
) -> None:
    supervisor = supervise(tmp_path, stand_in_argv, 2.0)
    try:
        eventually(lambda: ranks_ready(tmp_path))
        time.sleep(3.0)
        assert len(alive(str(tmp_path))) == 3
        supervisor.send_signal(signal.SIGSTOP)
        eventually(lambda: len(alive(str(tmp_path))) == 1, 6.0)
    finally:
        supervisor.kill()
        supervisor.wait()


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
    monkeypatch.setattr("workers.launchers.local.usable_cores", lambda: 16)
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
    for job in (make_job({}, device="cuda", ranks=2), make_job({}, ranks=1, visible=("3",))):
        assert rank_environment(job, 0, inherited).get("CUDA_VISIBLE_DEVICES") == inherited.get(
            "CUDA_VISIBLE_DEVICES"
        )


def test_the_command_of_a_probe() -> None:
    assert probe_argv(Path("/d")) == (
        *(sys.executable, "-P", "-m", "workers.probe", "--spec", "/d/spec.json"),
        *("--init-method", "file:///d/rendezvous", "--out", "/d", "--watch-fd", "{watch_fd}"),
        *("--silence-s", "20"),
    )


def test_a_rank_end_keeps_the_order_of_ranks(make_job) -> None:
    script = {"0": ["sleep:0.2", "ok"], "1": ["ok"]}
    ended = finish(LocalLauncher().start(make_job(script)))
    assert [rank.rank for rank in ended.ranks] == [0, 1]
    assert all(isinstance(rank, RankEnd) for rank in ended.ranks)
    assert ended.ranks[0].ended_at > ended.ranks[1].ended_at
