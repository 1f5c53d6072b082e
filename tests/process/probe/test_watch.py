import os
import subprocess
import sys
import time

import pytest

RANK = """
import sys, time
from workers.probe.orders import watch_supervisor
watch_supervisor(int(sys.argv[1]), float(sys.argv[2]))
time.sleep(float(sys.argv[3]))
"""


def start(read, silence_s, work_s=600.0):
    argv = [sys.executable, "-P", "-c", RANK, str(read), str(silence_s), str(work_s)]
    return subprocess.Popen(argv, pass_fds=(read,))


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_a_closed_pipe_ends_the_rank():
    read, write = os.pipe()
    rank = start(read, 600.0)
    os.close(read)
    os.close(write)
    assert rank.wait(60) == 111


def test_a_silent_pipe_ends_the_rank(pipe):
    assert start(pipe[0], 0.3).wait(60) == 111


def test_something_that_is_no_pipe_ends_the_rank():
    argv = [sys.executable, "-P", "-c", RANK, "999", "600", "600"]
    assert subprocess.run(argv, timeout=60, check=False).returncode == 111


def test_bytes_keep_the_rank_alive(pipe):
    for silence_s in (2.0, 10.0, 60.0):  # until nothing holds up who feeds it for so long
        rank = start(pipe[0], silence_s, work_s=silence_s + 1.0)
        while rank.poll() is None:
            os.write(pipe[1], b".")
            time.sleep(0.1)
        if rank.returncode == 0:
            break
    assert rank.returncode == 0
