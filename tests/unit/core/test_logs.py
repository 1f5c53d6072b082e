"""Lines of logs: what stands in them, and that nobody's text can look like another line."""

import io
import json
import logging
import re

import pytest

from tuner.client.local import LOG_PREFIX
from tuner.logs import bound, set_up_logs


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def own_logging(monkeypatch):
    """Leaves logging as it was found."""
    monkeypatch.delenv("TUNER_LOG", raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    # none is closed when they are replaced: pytest's own are among them
    monkeypatch.setattr(root, "handlers", [])
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def json_lines():
    """Sets up logs of a service; what was logged, when called."""
    stream = io.StringIO()
    set_up_logs("worker", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def text_of(monkeypatch):
    """Sets up logs as text."""
    monkeypatch.setenv("TUNER_LOG", "text")
    stream = io.StringIO()
    set_up_logs("worker", stream=stream)
    return stream


def test_a_line_says_what_it_is_about(json_lines):
    with bound(study="st-1"), bound(probe=3, attempt=9):
        logging.getLogger("workers.worker").info("probe %d ended", 3, extra={"wall_s": 1.5})
    logging.getLogger("workers.worker").warning("later")
    first, second = json_lines()
    assert list(first)[:5] == ["timestamp", "level", "process", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", first.pop("timestamp"))
    assert first == {
        "level": "info",
        "process": "worker",
        "logger": "workers.worker",
        "message": "probe 3 ended",
        "attempt": 9,
        "probe": 3,
        "study": "st-1",
        "wall_s": 1.5,
    }
    assert second["message"] == "later"
    assert "study" not in second


def test_others_are_shown_from_warnings_up(json_lines):
    for logger, level, shown in (
        ("tuner.store.calibrations", logging.INFO, True),
        ("workers", logging.INFO, True),
        ("api.access", logging.INFO, True),
        ("workers", logging.DEBUG, False),
        ("alembic.runtime.migration", logging.INFO, False),
        ("uvicorn.error", logging.INFO, False),
        ("uvicorn.error", logging.WARNING, True),
    ):
        before = len(json_lines())
        logging.getLogger(logger).log(level, "said")
        assert [line["logger"] for line in json_lines()[before:]] == [logger] * shown


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_shows_no_variables(monkeypatch, form):
    monkeypatch.setenv("TUNER_LOG", form)
    stream = io.StringIO()
    set_up_logs("worker", stream=stream)
    password = "hunter" + "2"
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("api").exception("failed")
    assert "ValueError: no" in stream.getvalue()
    assert password not in stream.getvalue()


def test_no_text_looks_like_another_line(monkeypatch):
    stream = text_of(monkeypatch)
    forged = "x\n2026-01-01 00:00:00 worker: all is well \x1b[2J"
    logging.getLogger("workers").info("%s", forged, extra={"field": forged})
    first, second = stream.getvalue().splitlines()
    assert LOG_PREFIX.match(first)
    assert not LOG_PREFIX.match(second)
    assert "\x1b" not in first + second


def test_where_lines_are_json(monkeypatch):
    for said, stream, is_service, as_json in (
        ("", io.StringIO(), True, True),
        ("", Terminal(), True, False),
        ("", io.StringIO(), False, False),
        ("json", Terminal(), False, True),
        ("text", io.StringIO(), True, False),
    ):
        monkeypatch.setenv("TUNER_LOG", said)
        set_up_logs("api", is_service=is_service, stream=stream)
        logging.getLogger("api").info("said")
        assert stream.getvalue().startswith("{") == as_json
