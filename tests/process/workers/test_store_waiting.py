"""A database that is away when a worker starts that serves."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVE = [sys.executable, "-P", "-m", "workers", "--serve"]


@pytest.fixture
def away() -> Iterator[str]:
    """The address of a server that is not there."""
    with socket.socket() as taken:  # nobody listens, and nobody else can
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://nobody@127.0.0.1:{taken.getsockname()[1]}/tuner"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_waits_until_it_is_told_to_end(
    away: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen([*SERVE, "--db", away], stderr=stderr) as worker:
        try:
            until = time.monotonic() + 240
            while log.read_text().count("trying again in") < 2:
                assert worker.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            worker.send_signal(number)
            assert worker.wait(60) == code
        finally:
            worker.kill()
    assert f"the worker got {number.name}" in log.read_text()
    assert "nobody" in log.read_text(), "it says which one"


def test_one_that_serves_a_single_study_says_so_and_ends(away: str) -> None:
    argv = [*SERVE, "--once", "--db", away]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1
    assert "cannot be used" in ended.stderr
    assert "trying again" not in ended.stderr
