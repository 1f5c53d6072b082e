"""The table of probes: columns, orders, filters."""

import pytest

from api.pages.probe_table import ANY, FASTEST_FIRST, Table, table_of
from tests.api.pages.made import GIB, crashed, ok, oom, question, study
from tuner.errors import UsageError
from tuner.study import StudyState

FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed(), ok(1.5, 1, 10 * GIB), None]


@pytest.fixture(scope="module")
def table() -> Table:
    made = study(question(), FOUND, StudyState.RUNNING)
    return table_of(made, made.probes[2].request.settings)


def ids(table: Table) -> list[int]:
    return [line.id for line in table.lines]


def test_the_fastest_come_first_and_what_has_no_speed_last(table: Table) -> None:
    assert ids(table) == [3, 5, 1, 2, 4, 6]
    assert table.sort == FASTEST_FIRST
    assert [line.id for line in table.lines if line.is_best] == [3]


def test_a_line_says_what_was_found(table: Table) -> None:
    line, failed, running = table.lines[0], table.lines[3], table.lines[5]
    assert (line.outcome, line.memory, line.step, line.took) == ("ok", "30.2", "1.01", "12 s")
    assert line.fits is True
    assert not line.failed
    assert (failed.outcome, failed.memory, failed.speed) == ("oom", "> 78.0", "-")
    assert failed.failed
    assert failed.fits is False
    assert (running.outcome, running.memory, running.took) == ("running", "-", "-")
    assert table.unit == "GiB"
    assert len(line.knobs) == len(table.knobs)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("id", [1, 2, 3, 4, 5, 6]),
        ("-id", [6, 5, 4, 3, 2, 1]),
        ("memory", [5, 1, 3, 2, 4, 6]),
        ("-memory", [2, 3, 1, 5, 4, 6]),
        ("outcome", [4, 1, 3, 5, 2, 6]),
        ("step", [3, 5, 1, 2, 4, 6]),
    ],
)
def test_it_is_sorted_by_any_column(table: Table, sort: str, expected: list[int]) -> None:
    assert ids(table.chosen(sort, ANY)) == expected


def test_every_column_can_be_sorted_by(table: Table) -> None:
    for column in table.columns:
        for sort in (column.key, f"-{column.key}"):
            assert sorted(ids(table.chosen(sort, ANY))) == [1, 2, 3, 4, 5, 6]


def test_a_column_leads_to_its_order_and_back(table: Table) -> None:
    columns = {column.key: column for column in table.columns}
    assert columns["speed"].sorted == "descending"
    assert columns["speed"].href == "/studies/st-0123456789ab?sort=speed#probes"
    assert columns["memory"].href == "/studies/st-0123456789ab?sort=-memory#probes"
    assert columns["outcome"].href == "/studies/st-0123456789ab?sort=outcome#probes"
    by_outcome = {one.key: one for one in table.chosen("outcome", "ok").columns}
    assert by_outcome["outcome"].sorted == "ascending"
    assert by_outcome["speed"].href == "/studies/st-0123456789ab?outcome=ok#probes"
    assert [one.key for one in by_outcome.values() if one.sorted] == ["outcome"]


def test_an_outcome_is_chosen_and_all_are_counted(table: Table) -> None:
    chosen = table.chosen(FASTEST_FIRST, "ok")
    assert ids(chosen) == [3, 5, 1]
    titles = {one.title: one.count for one in chosen.filters}
    assert titles == {"all": 6, "ok": 3, "oom": 1, "crashed": 1, "running": 1}
    assert [one.title for one in chosen.filters if one.is_current] == ["ok"]
    assert ids(table.chosen(FASTEST_FIRST, "timeout")) == []


@pytest.mark.parametrize(("sort", "outcome"), [("price", ""), ("--id", ""), ("id", "fine")])
def test_what_there_is_not_is_refused(table: Table, sort: str, outcome: str) -> None:
    with pytest.raises(UsageError):
        table.chosen(sort, outcome)


def test_knobs_that_are_the_same_everywhere_have_no_column(table: Table) -> None:
    assert "pp_size" not in table.knobs
    assert "pp size 1" in table.common


def test_a_study_without_probes_has_an_empty_table() -> None:
    table = table_of(study(question(), [], StudyState.QUEUED), None)
    assert table.lines == ()
    assert [one.count for one in table.filters] == [0]
