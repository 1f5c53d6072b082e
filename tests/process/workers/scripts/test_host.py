"""The host of a launcher: what it runs, and that it ends with what that has started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.script import Command, read_script
from workers.probe.orders import SUPERVISOR_GONE
from workers.scripts.host import KEPT_BYTES, NOT_HERE, write_orders

CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}, {tag!r}]{more})"
HANGS = "import time; time.sleep(1000)"


@pytest.fixture
def host(tmp_path):
    """``host(code)``: a host whose launcher is this Python code."""
    started = []

    def start(code, *, silence_s=600.0, output=None, change=lambda: None):
        (tmp_path / "train.py").touch()
        script = read_script("train.py", folder=tmp_path)
        command = Command(
            launcher=(),
            script=(script.path, tag(tmp_path)),
            environment={},
            cluster=parse_cluster("cpu:2"),
            configuration="",
        )
        write_orders(tmp_path, script, command, ("-c", code), {**os.environ})
        change()
        read, write = os.pipe()
        argv = (sys.executable, "-P", "-m", "workers.scripts.host", "--out", str(tmp_path))
        with (output or Path(os.devnull)).open("wb") as log:
            process = subprocess.Popen(
                [*argv, "--watch-fd", str(read), "--silence-s", str(silence_s)],
                pass_fds=(read,),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(read)
        started.append((process, write))
        return process

    start.feeds = started
    yield start
    for process, write in started:
        process.kill()
        process.wait()
        if write >= 0:
            os.close(write)
    for process in left(tmp_path):
        process.kill()


def tag(folder):
    return f"of-{folder}"


def left(folder):
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if tag(folder) in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def with_child(folder, then, more=""):
    """Code that starts a process in a session of its own, and goes on."""
    more = f", start_new_session=True{more}"
    return CHILD.format(code=HANGS, tag=tag(folder), more=more) + f"\n{then}"


def test_a_script_that_prints_much_does_not_fill_the_disk(host, tmp_path):
    path = tmp_path / "log"
    prints = "for n in range(2000): print(f'{n:06}' + 'x' * 10_000)\nraise SystemExit('the end')"
    assert host(prints, output=path).wait(60) == 1
    log = path.read_text()
    assert 2 * KEPT_BYTES < len(log) < 3.1 * KEPT_BYTES
    assert log.startswith("000000x")
    assert "bytes are left out]" in log
    assert log.endswith("001999" + "x" * 10_000 + "\nthe end\n")


@pytest.mark.parametrize("more", ["", ", env={}"])
def test_nothing_is_left_when_the_launcher_ends(host, tmp_path, more):
    """Not even a child that neither its session nor its environment tells of."""
    assert host(with_child(tmp_path, "", more)).wait(60) == 0
    assert not left(tmp_path)


def test_it_ends_with_its_supervisor(host, tmp_path, eventually):
    process = host(with_child(tmp_path, HANGS))
    eventually(lambda: len(left(tmp_path)) == 2)
    _, write = host.feeds.pop()
    os.close(write)
    host.feeds.append((process, -1))
    assert process.wait(60) == SUPERVISOR_GONE
    assert not left(tmp_path)


def test_nothing_is_left_when_it_is_killed(host, tmp_path, eventually):
    """Ray kills the children of an actor, before a host could do anything."""
    process = host(with_child(tmp_path, HANGS))
    eventually(lambda: len(left(tmp_path)) == 2)
    process.kill()
    eventually(lambda: not left(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_text("other"), "was edited since it was asked about"),
        (lambda path: path.unlink(), "cannot be read: No such file or directory"),
    ],
)
def test_a_node_where_the_script_is_another_one_says_so(host, tmp_path, change, said):
    path = tmp_path / "log"
    started = host(HANGS, output=path, change=lambda: change(tmp_path / "train.py"))
    assert started.wait(60) == NOT_HERE
    assert said in path.read_text()
    assert path.read_text().startswith(f"on {socket.gethostname()} the script {tmp_path}")
