import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.workload import Workload
from tuner.model import published_model as read


@pytest.fixture
def table(benchmark, monkeypatch):
    module = benchmark("rival_table")
    monkeypatch.setattr(module, "RIVALS", ("theirs",))
    monkeypatch.setattr(module, "estimates", lambda *of: {"theirs": 50.0})
    return module


def row(table, measured, ran, ours):
    return table.Compared(
        workload=Workload(model=read("llama-2-7b"), sequence_length=128, global_batch_size=8),
        cluster=parse_cluster("8xa100-80gb"),
        settings=Settings(),
        measured_bytes=measured,
        ran=ran,
        limit_bytes=100.0,
        ours={"ours": ours},
    )


def test_errors_and_verdicts_of_both(table) -> None:
    rows = [
        row(table, 100.0, True, (90.0, True)),
        row(table, 50.0, True, (51.0, True)),
        row(table, 80.0, True, (104.0, False)),
        row(table, None, False, (150.0, False)),
    ]
    ours, theirs = table.table("here", rows)
    assert (ours["by"], ours["n"]) == ("ours", 3)
    assert ours["median_error"] == pytest.approx(0.1)
    assert ours["largest_error"] == pytest.approx(0.3)
    assert ours["verdicts_right"] == "3 of 4"
    assert ours["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    # 50 always fits into 100: right wherever it ran, and nowhere else.
    assert theirs["verdicts_right"] == "3 of 4"
    assert theirs["balanced_accuracy"] == 0.5


def test_where_all_ran_no_verdict_was_at_stake(table) -> None:
    ours, theirs = table.table("here", [row(table, 100.0, True, (90.0, True))])
    assert ours["verdicts_right"] == theirs["verdicts_right"] == ""
    assert ours["balanced_accuracy"] is None
