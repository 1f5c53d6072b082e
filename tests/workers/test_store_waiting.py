"""A database that is away when a worker starts that serves."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.errors import AwayError, StoreError, UsageError
from tuner.store import Store, open_store
from workers import store_waiting as opening
from workers.stop import StopRequest
from workers.store_waiting import open_patiently

SERVE = [sys.executable, "-P", "-m", "workers", "--serve"]


@pytest.fixture
def away() -> Iterator[str]:
    """The address of a server that is not there."""
    with socket.socket() as taken:  # nobody listens, and nobody else can
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://nobody@127.0.0.1:{taken.getsockname()[1]}/tuner"


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Has the database be away some times, or fail; what was asked for a pause, in seconds."""

    def plan(*errors: Exception) -> list[float]:
        left, pauses = list(errors), []

        def open_it(*args: object, **more: object) -> Store:
            if left:
                raise left.pop(0)
            return open_store(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(opening, "open_store", open_it)
        monkeypatch.setattr(StopRequest, "wait", lambda self, s: pauses.append(s) or self._why)
        return pauses

    return plan


def test_it_is_waited_for_with_growing_pauses(tries, tmp_path: Path) -> None:
    pauses = tries(*[AwayError("not there")] * 7)
    url = f"sqlite:///{tmp_path}/tuner.db"
    store = open_patiently(url, StopRequest(), lease_s=7.0)
    assert store is not None
    with store:
        assert (store.url, store.lease_s) == (url, 7.0)
    assert [pause for pause in pauses if pause] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize("error", [StoreError("of a newer version"), UsageError("db", "x", "no")])
def test_what_does_not_pass_is_told_at_once(tries, error: Exception) -> None:
    tries(AwayError("not there"), error)
    with pytest.raises(type(error), match=str(error)):
        open_patiently(None, StopRequest())


def test_a_stop_ends_the_waiting(away: str) -> None:
    stop = StopRequest()
    stop.request("enough")
    assert open_patiently(away, stop) is None


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
