"""The service's command: where it may bind, and that it serves."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

SERVE = [sys.executable, "-P", "-m", "api"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "example.org", "::"])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    done = subprocess.run([*SERVE, "--host", host], capture_output=True, text=True)
    assert done.returncode == 2
    assert "loopback" in done.stderr


def test_an_unusable_database_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([*SERVE, "--db", f"sqlite:///{tmp_path}"], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith("error: db")
    assert done.stderr.count("\n") == 1


def test_serves(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*SERVE, "--db", f"sqlite:///{tmp_path}/s.db", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        assert _get(f"http://127.0.0.1:{port}/healthz") == {"status": "ok"}
        assert _get(f"http://127.0.0.1:{port}/tune") == {"studies": []}
    finally:
        process.terminate()
        process.wait(timeout=20)


def _get(url: str) -> dict:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url) as response:
                return json.load(response)
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no answer from {url}")
