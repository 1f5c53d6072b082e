"""What is asked of the service's benchmark, and what its parts make of what they see."""

import http.server
import json
import time
from typing import ClassVar

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def posts(benchmark):
    return benchmark("service_posts")


@pytest.fixture
def streams(benchmark):
    return benchmark("service_streams")


STUDY = {
    "study_id": "st-0",
    "state": "done",
    "pending": False,
    "suggestion": {"best": {"provenance": "predicted"}},
}


def seen(count: int, seconds: float = 0.01, errors: int = 0) -> dict:
    return {
        "latencies_s": [seconds] * count,
        "count_errors": errors,
        "errors": ["status 500"] * errors,
    }


def missed(part, rows: list) -> list[str]:
    return [goal.name for goal in part.goals(rows) if not goal.met]


# -- posts ------------------------------------------------------------------------------------


def post_rows(posts, *, plain: list | None = None, first: float = 0.5, errors: int = 0) -> list:
    return [
        posts.row_of(posts.FIRST, 1, 4.0, [seen(8, first)]),
        posts.row_of(posts.PLAIN, 2, 10.0, plain or [seen(1000), seen(1000)]),
        posts.row_of(posts.IDEMPOTENT, 2, 10.0, [seen(10, 2.0, errors)]),
    ]


def test_each_figure_of_posts_is_held_to_its_own_limit(posts) -> None:
    (few,) = missed(posts, post_rows(posts, plain=[seen(1499)]))
    assert few.endswith("answers/s")
    (slow,) = missed(posts, post_rows(posts, plain=[seen(2000), seen(30, 0.41)]))
    assert slow.endswith("p99, ms")
    (new,) = missed(posts, post_rows(posts, first=1.1))
    assert new.endswith("slowest, s")
    (wrong,) = missed(posts, post_rows(posts, errors=1))
    assert wrong.endswith("errors")


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers well, badly, and then not at all."""

    protocol_version = "HTTP/1.1"
    keys: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        number = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["number"]
        Answers.keys.append(self.headers["Idempotency-Key"])
        if number == 2:
            self.close_connection = True
            return
        content = json.dumps(STUDY).encode()
        self.send_response(202 if number == 0 else 429)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


# -- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([1, 2, 5], {}),
        ([1, 5], {"missing": 1}),
        ([], {"missing": 3}),
        ([1, 2, 2, 5], {"doubled": 1}),
        ([1, 5, 2], {"out_of_order": 1}),
        ([1, 2, 4, 5], {"doubled": 1}),
    ],
)
def test_what_a_listener_was_told_is_held_against_what_happened(streams, told, wrong) -> None:
    nothing = {"missing": 0, "doubled": 0, "out_of_order": 0}
    assert streams.wrongs(told, [1, 2, 5]) == {**nothing, **wrong}


def stream_row(**other: float) -> dict:
    return {
        "streams": 200, "polls": 60, "missing": 0, "doubled": 0, "out_of_order": 0, "errors": 0,
        "least_reconnects": 1, "healthz_p99_ms": 99.0, **other,
    }  # fmt: skip


def test_each_figure_of_streams_is_held_to_its_own_limit(streams) -> None:
    assert missed(streams, [stream_row()]) == []
    for what in ("missing", "doubled", "out_of_order", "errors"):
        assert len(missed(streams, [stream_row(**{what: 1})])) == 1
    assert len(missed(streams, [stream_row(least_reconnects=0)])) == 1
    assert len(missed(streams, [stream_row(healthz_p99_ms=101.0)])) == 1


@pytest.fixture
def small(streams, benchmark, monkeypatch):
    """Runs it in small, with so many probes; no program of it stays behind."""
    monkeypatch.setattr(streams, "PATIENCE_S", 600.0)
    monkeypatch.setattr(streams, "TIMEOUT_S", 120.0)
    monkeypatch.setattr(benchmark("service_server"), "STOP_S", 120.0)
    started, start = [], streams.start_program

    def start_program(*given):
        started.append(start(*given))
        return started[-1]

    def run(probes: int):
        try:
            return streams.rows(
                streams.Size(studies=2, streams=6, polls=4, probes=probes, most_events=5,
                             health_s=0.5)
            )  # fmt: skip
        finally:
            for program in started:
                with program:
                    program.kill()

    monkeypatch.setattr(streams, "start_program", start_program)
    return run


def test_a_killed_server_and_broken_streams_lose_no_event(small) -> None:
    for probes in (12, 60, 300):  # until they go on until the server is killed
        try:
            (row,) = small(probes)
            break
        except AssertionError as error:
            if probes == 300 or "while probes run" not in str(error):
                raise
    assert (row["streams"], row["polls"], row["what"]) == (6, 4, "")
    assert row["told"] == 3 * row["events"] > 200
    assert row["least_reconnects"] >= 5
    assert [row[what] for what in ("missing", "doubled", "out_of_order", "errors")] == [0] * 4


# -- statements -------------------------------------------------------------------------------


def test_statements_do_not_grow_with_listeners(benchmark, monkeypatch) -> None:
    statements = benchmark("service_statements")
    row_of, look_s = statements._row, statements.Settings(_env_file=None).poll_s

    async def timed(*given):
        began = time.monotonic()
        row = await row_of(*given)
        return {**row, "took_s": time.monotonic() - began}

    monkeypatch.setattr(statements, "_row", timed)
    rows = statements.rows(probes=4, listeners=(1, 20))
    assert [row["told"] for row in rows] == [row["listeners"] * row["events"] for row in rows]
    for row in rows:  # three for a look, of all together; twenty times as many, if each one asked
        assert row["statements"] <= 3 * (1 + row["took_s"] / look_s)


def test_growing_statements_and_lost_events_are_seen(benchmark) -> None:
    statements = benchmark("service_statements")
    one = {"listeners": 1, "events": 10, "told": 10, "statements_per_event": 2.0}
    many = {"listeners": 5, "events": 10, "told": 50, "statements_per_event": 2.1}
    assert missed(statements, [one, many]) == []
    assert len(missed(statements, [one, {**many, "statements_per_event": 2.3}])) == 1
    assert len(missed(statements, [one, {**many, "told": 49}])) == 1
