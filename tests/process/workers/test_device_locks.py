"""Locks of devices that processes hold or wait for which are killed."""

import signal
import subprocess
import sys

from workers.devices import DeviceLocks

ONE = ("GPU-1",)

TAKE = """
import sys, time
from pathlib import Path
from workers.devices import DeviceLocks
assert DeviceLocks(Path(sys.argv[1]), ["GPU-1"]).acquire()
print("taken", flush=True)
time.sleep(60)
"""

WAIT = TAKE.replace("assert", "assert not").replace("taken", "waiting")


def test_a_lock_ends_with_the_process_that_has_it(tmp_path, eventually):
    argv = [sys.executable, "-P", "-c", TAKE, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"taken\n"
        lock = DeviceLocks(tmp_path / "lock", ONE)
        assert not lock.acquire()
        assert lock.holder == f"the worker that is process {holder.pid}"
        holder.send_signal(signal.SIGSTOP)
        eventually(lambda: f"which is stopped: kill -CONT {holder.pid}" in lock.holder)
        holder.kill()
        holder.wait()
    assert lock.acquire()
    assert lock.holder == ""
    lock.release()


def test_a_waiter_that_dies_waits_no_more(tmp_path):
    lock = DeviceLocks(tmp_path / "lock", ONE)
    assert lock.acquire()
    argv = [sys.executable, "-P", "-c", WAIT, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as waiter:
        assert waiter.stdout.readline() == b"waiting\n"
        assert lock.wanted
        waiter.kill()
        waiter.wait()
    assert not lock.wanted
