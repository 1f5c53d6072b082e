import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import until
from tuner.client.worker_process import Signals, Worker, probing_arguments, worker_argv
from tuner.core.launcher import LauncherName

PATIENT = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', file=sys.stderr, flush=True); time.sleep(60)"
)
"""A worker that takes no hint."""


def script(text):
    """The command of a stand-in worker."""
    return [sys.executable, "-P", "-c", f"import os, sys\n{text}"]


def test_the_command_of_a_worker():
    argv = [sys.executable, "-P", "-m", "workers", "--study", "st-1"]
    assert worker_argv("st-1") == argv
    queued = [*argv, "--queued-only", "--fidelity", "predicted"]
    assert worker_argv("st-1", queued_only="predicted") == queued
    told = ["--probe-deadline=1800", "--launcher=ray", "--ray=10.0.0.1:6379"]
    assert probing_arguments(1800.0, LauncherName.RAY, "10.0.0.1:6379") == told
    assert worker_argv("st-1", told) == [*argv, *told]


def test_a_worker_has_a_session_and_an_environment_of_its_own():
    text = (
        "assert os.getsid(0) == os.getpid() and sys.stdin.read() == ''\n"
        "assert os.environ['TUNER_DB'] == 'sqlite:///x.db' and 'PATH' in os.environ\n"
        "assert sys.argv[-2] == '--watch-fd'; os.fstat(int(sys.argv[-1]))\n"
        "sys.exit(7)"
    )
    with Worker(script(text), {"TUNER_DB": "sqlite:///x.db"}) as worker:
        until(lambda: worker.poll() is not None)
        assert worker.poll() == 7, worker.last_words()


def test_a_worker_is_told_every_second_that_we_are_here(monkeypatch):
    monkeypatch.setattr("tuner.client.worker_process.FEED_S", 0.05)
    text = "fd = int(sys.argv[-1])\nsys.exit(sum(len(os.read(fd, 1)) for _ in range(3)))"
    with Worker(script(text), {}) as worker:
        until(lambda: worker.poll() is not None)
        assert worker.poll() == 3


def test_a_worker_is_asked_to_end():
    text = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('up', file=sys.stderr, flush=True)\ntime.sleep(60)"
    )
    with Worker(script(text), {}) as worker:
        until(worker.last_words)
        worker.stop(Signals())
        assert worker.poll() == 5


def test_a_second_signal_kills():
    with Signals() as signals, Worker(script(PATIENT), {}) as worker:
        until(worker.last_words)
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        worker.stop(signals)
        signal.signal(signal.SIGALRM, before)
        assert worker.poll() == -signal.SIGKILL


def test_patience_ends(monkeypatch):
    monkeypatch.setattr("tuner.client.worker_process.STOP_S", 0.2)
    with Worker(script(PATIENT), {}) as worker:
        until(worker.last_words)
        worker.stop(Signals())
        assert worker.poll() == -signal.SIGKILL


def test_no_worker_is_left_behind():
    with pytest.raises(RuntimeError, match="trouble"), Worker(script(PATIENT), {}) as worker:
        raise RuntimeError("trouble")
    assert worker.poll() == -signal.SIGKILL


def test_its_pipe_closes_when_we_are_killed(tmp_path):
    """Whatever ends this process: the worker's end of the pipe says so."""
    mark = tmp_path / "closed"
    child = f"while os.read(int(sys.argv[-1]), 1): pass\nopen({str(mark)!r}, 'w').close()"
    parent = (
        "import sys, time; from tuner.client.worker_process import Worker\n"
        f"worker = Worker({script(child)!r}, {{}}); print('up', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    with process, process.stdout:
        assert process.stdout.readline() == b"up\n"
        process.kill()
    until(mark.exists)
