"""Where the service of a database is reached, for the commands of its user."""

import json
import socket

import pytest

from tuner.cli.serve import noted_address, page_of


@pytest.fixture
def listening(monkeypatch, tmp_path):
    """A port that takes connections, in a folder of one's own for caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_page_is_known_while_a_service_runs_on_the_database(listening, tmp_path):
    db, port = f"sqlite:///{tmp_path}/a.db", listening.getsockname()[1]
    assert page_of("st-1", None, db) == ""
    with noted_address(db, f"http://0.0.0.0:{port}"):
        assert page_of("st-1", None, db) == f"http://127.0.0.1:{port}/studies/st-1"
        assert page_of("st-1", None, f"sqlite:///{tmp_path}/b.db") == ""
    assert page_of("st-1", None, db) == ""


def test_a_service_that_is_gone_has_no_page(listening, tmp_path):
    db = f"sqlite:///{tmp_path}/a.db"
    with noted_address(db, f"http://127.0.0.1:{listening.getsockname()[1]}"):
        listening.close()
        assert page_of("st-1", None, db) == ""


def test_another_service_s_note_is_left(listening, tmp_path):
    db, other = f"sqlite:///{tmp_path}/a.db", f"http://127.0.0.1:{listening.getsockname()[1]}"
    with noted_address(db, "http://127.0.0.1:1"):
        (note,) = (tmp_path / "cache").rglob("*.json")
        note.write_text(json.dumps({"url": other, "pid": 0}))
    assert page_of("st-1", None, db) == f"{other}/studies/st-1"


def test_the_page_at_a_server_is_its_own():
    assert page_of("st-1", "https://tuner.example.org/", None) == (
        "https://tuner.example.org/studies/st-1"
    )
