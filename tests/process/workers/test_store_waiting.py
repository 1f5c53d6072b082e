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


def test_a_worker_waits_until_it_is_told_to_end(away: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen([*SERVE, "--db", away], stderr=stderr) as worker:
        try:
            until = time.monotonic() + 240
            while log.read_text().count("trying again in") < 2:
                assert worker.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(60) == 130
        finally:
            worker.kill()
    assert "the worker got SIGINT" in log.read_text()
    assert "nobody" in log.read_text(), "it says which one"
