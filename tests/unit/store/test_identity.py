"""Who a worker is, and whether it lives."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tuner.store import WorkerIdentity


def test_a_process_that_ended_is_dead(dead):
    assert dead.is_alive() is False


def test_a_pid_that_came_round_again_is_not_the_worker(worker):
    assert replace(worker, started=worker.started - 100).is_alive() is False


def test_of_another_machine_or_boot_nothing_is_known(worker):
    assert replace(worker, host="elsewhere").is_alive() is None
    assert replace(worker, boot_id="before").is_alive() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_zombie_is_dead_and_a_stopped_process_is_not():
    program = (
        "import json, os, signal; from tuner.store import WorkerIdentity as Worker;"
        " print(json.dumps(Worker.of_this_process().as_dict()), flush=True);"
        " os.kill(os.getpid(), signal.SIGSTOP)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        worker = WorkerIdentity.from_dict(json.loads(process.stdout.readline()))
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert worker.is_alive() is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert worker.is_alive() is False
    finally:
        process.kill()
        process.communicate()
    assert worker.is_alive() is False
