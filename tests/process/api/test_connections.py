"""Callers who say nothing, or too slowly, to a service that really listens."""

import resource
import socket
import subprocess
from functools import partial
from itertools import count

import pytest

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving as serving_here
from tests.process.api.test_main import environment, get, serving

__all__ = ["environment"]


def connect(url, *said):
    host, port = url.removeprefix("http://").split(":")
    one = socket.create_connection((host, int(port)), timeout=60)
    one.sendall("\r\n".join(said).encode())
    return one


def test_more_silent_callers_than_files_keep_nobody_else_out(environment, tmp_path, monkeypatch):
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (128, 256))
    started = partial(subprocess.Popen, preexec_fn=few)
    monkeypatch.setattr(subprocess, "Popen", lambda *a, preexec_fn, **k: started(*a, **k))
    with serving(environment, tmp_path) as service:
        silent = []
        for number in range(300):
            silent.append(connect(service.url, "GET /tune HTTP/1.1", "Host: localhost", "X-a: "))
            if number % 50 == 49:
                assert get(f"{service.url}/healthz")[0] == 200
        assert get(f"{service.url}/tune")[0] == 200
        service.end()
        told = [line["message"] for line in service.lines() if line["level"] != "info"]
        assert service.log.stat().st_size < 100_000
        for one in silent:
            one.close()
    assert len(told) == 1
    assert "closed before their callers were let in" in told[0]


@pytest.fixture
def at_once(monkeypatch):
    """Callers have next to no time for their headers."""
    monkeypatch.setattr("api.limits.HEADERS_S", 0.05)


@pytest.fixture
def url(store):
    with serving_here(create_app(store, Settings(_env_file=None, require_keys=True))) as url:
        yield url


def test_headers_that_do_not_come_end_the_connection(at_once, url):
    with connect(url) as silent, connect(url, "GET /healthz HTTP/1.1", "Host: loc") as slow:
        assert (silent.recv(100), slow.recv(100)) == (b"", b"")


def test_nobody_goes_on_sending_a_body_to_a_refusal(at_once, url):
    asked = ("POST /tune HTTP/1.1", "Host: localhost", "Content-Length: 1000000", "", "")
    with connect(url, *asked) as one, pytest.raises(OSError, match=r"reset|[Bb]roken"):
        assert one.recv(100).startswith(b"HTTP/1.1 401")
        one.settimeout(0.01)
        for sent in count():
            assert sent < 5000
            one.sendall(b"x")
            try:
                if not one.recv(100_000):
                    raise BrokenPipeError("broken")
            except TimeoutError:
                continue


def test_a_body_of_two_lengths_is_refused_and_its_connection_ends(url):
    asked = (
        "POST /tune HTTP/1.1", "Host: localhost", "Content-Length: 5",
        "Transfer-Encoding: chunked", "", "0", "", "GET /healthz HTTP/1.1", "Host: localhost", "",
        "",
    )  # fmt: skip
    with connect(url, *asked) as one, one.makefile("rb") as answers:
        said = answers.read()
    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1") == 1, "what follows is nobody's request"
