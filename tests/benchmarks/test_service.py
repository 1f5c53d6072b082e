"""What is asked of the service's benchmark, and what its parts make of what they see."""

import time

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def streams(benchmark):
    return benchmark("service_streams")


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
def test_what_a_listener_was_told_is_held_against_what_happened(streams, told, wrong):
    nothing = {"missing": 0, "doubled": 0, "out_of_order": 0}
    assert streams.wrongs(told, [1, 2, 5]) == {**nothing, **wrong}


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

    def run(probes):
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


def test_a_killed_server_and_broken_streams_lose_no_event(small):
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


def test_statements_do_not_grow_with_listeners(benchmark, monkeypatch):
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
