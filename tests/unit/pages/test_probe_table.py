"""The table of probes: columns, orders, filters."""

import pytest

from api.pages.probe_table import ANY, FASTEST_FIRST, table_of
from tests.unit.pages.made import GIB, crashed, ok, oom, question, study
from tuner.core.study import StudyState
from tuner.errors import UsageError
from tuner.results.points import Evidence

FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed(), ok(1.5, 1, 10 * GIB), None]


@pytest.fixture(scope="module")
def table():
    made = study(question(), FOUND, StudyState.RUNNING)
    return table_of(Evidence(made), made.probes[2].request.settings)


def ids(table):
    return [row.id for row in table.rows]


def test_a_row_says_what_was_found(table):
    keys = ("outcome", "memory", "step", "speed", "took")
    shown = {row.id: tuple(row.cells[key].text for key in keys) for row in table.rows}
    assert shown[3] == ("ok", "30.2", "1.01", "4,068", "12 s")
    assert shown[2] == ("oom", "> 78.0", "-", "-", "3.0 s")
    assert shown[6] == ("running", "-", "-", "-", "-")
    assert [row.id for row in table.rows if row.is_best] == [3]
    assert [row.id for row in table.rows if row.failed] == [2, 4]
    assert "memory, GiB" in [column.title for column in table.columns]
    assert all(list(row.cells) == [column.key for column in table.columns] for row in table.rows)


def test_it_is_sorted_and_what_is_unknown_goes_last(table):
    for sort, expected in (
        (FASTEST_FIRST, [3, 5, 1, 2, 4, 6]),
        ("-id", [6, 5, 4, 3, 2, 1]),
        ("memory", [5, 1, 3, 2, 4, 6]),
        ("-memory", [2, 3, 1, 5, 4, 6]),
        ("outcome", [4, 1, 3, 5, 2, 6]),
        ("step", [3, 5, 1, 2, 4, 6]),
    ):
        assert ids(table.chosen(sort, ANY)) == expected, sort
    for column in table.columns:
        assert sorted(ids(table.chosen(f"-{column.key}", ANY))) == [1, 2, 3, 4, 5, 6]


def test_an_outcome_is_chosen_and_all_are_counted(table):
    chosen = table.chosen(FASTEST_FIRST, "ok")
    assert ids(chosen) == [3, 5, 1]
    assert chosen.counts == {"": 6, "ok": 3, "oom": 1, "crashed": 1, "running": 1}
    assert chosen.href(outcome="oom") == "/studies/st-0123456789ab?outcome=oom#probes"
    assert ids(table.chosen(FASTEST_FIRST, "timeout")) == []
    for wrong in (("price", ""), ("--id", ""), ("id", "fine")):
        with pytest.raises(UsageError):
            table.chosen(*wrong)


def test_knobs_that_are_the_same_everywhere_have_no_column(table):
    assert "pp_size" not in [column.key for column in table.columns]
    assert "pp_size=1" in table.common

    empty = table_of(Evidence(study(question(), [], StudyState.QUEUED)), None)
    assert (empty.rows, empty.counts) == ((), {"": 0})
