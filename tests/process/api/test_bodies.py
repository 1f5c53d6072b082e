"""What protects the service, under a real server: bodies that are not read, or not waited for."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from api.app import protect
from api.problems import add_problems
from api.security import Submitter
from api.settings import Settings
from tests.process.api.live import serving
from tuner.store import Store, open_store
from tuner.store.access import Keys
from tuner.store.tables import Scope

MOST_BYTES = 1024


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("protected")
    with open_store(f"sqlite:///{folder}/studies.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def key(store: Store) -> str:
    return Keys(store.transactions).create("a", Scope.SUBMIT)[1]


@pytest.fixture(scope="module")
def port(store: Store) -> Iterator[int]:
    """That of a running service with one route."""
    app = FastAPI()

    @app.post("/submit")
    def submit(caller: Submitter, body: dict[str, Any]) -> int:
        return len(body)

    add_problems(app)
    settings = Settings(_env_file=None, require_keys=True, max_body_bytes=MOST_BYTES)
    protect(app, settings, Keys(store.transactions))
    app.state.stopping = lambda: None
    with serving(app) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    """One connection, which requests share."""
    opened = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    yield opened
    opened.close()


def post(connection: http.client.HTTPConnection, body: Any, **headers: str) -> int:
    """The status; a body of many parts is sent in chunks, without its length."""
    given = {"Content-Type": "application/json", **headers}
    connection.request("POST", "/submit", body, given, encode_chunked=True)
    response = connection.getresponse()
    response.read()
    return response.status


def test_a_body_may_have_its_size_and_no_more(
    connection: http.client.HTTPConnection, key: str
) -> None:
    head = {"Authorization": f"Bearer {key}"}
    fits = b'{"a": "' + b"x" * (MOST_BYTES - 9) + b'"}'
    assert len(fits) == MOST_BYTES
    assert post(connection, fits, **head) == 200
    assert post(connection, iter([fits[:100], fits[100:]]), **head) == 200
    assert post(connection, fits + b" ", **head) == 413
    assert post(connection, fits, **head) == 200, "on the same connection"
    assert post(connection, iter([b"x" * 1000] * 5), **head) == 413, "without a length"


def test_without_a_key_a_body_is_not_waited_for(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as opened:
        head = "POST /submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        opened.sendall(head.encode())  # and nothing more
        assert opened.recv(100).startswith(b"HTTP/1.1 401 ")


def test_an_upgrade_is_no_way_in(port: int) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    opened = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    opened.request("GET", "/submit", headers=upgrade)
    assert opened.getresponse().status in (401, 403)
    opened.close()
