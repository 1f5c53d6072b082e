"""Rows of collectives at several micro-batch sizes."""

from typing import Any

from workers.probe.dry.trace import joined


def row(count: int, size: int, axis: str = "dp_shard") -> dict[str, Any]:
    kind = {"op": "all_gather", "axis": axis, "phase": "forward", "overlap": "prefetched"}
    return {**kind, "count": count, "bytes": size}


def test_a_kind_is_one_row_with_the_bytes_of_each_size() -> None:
    notes: list[str] = []
    found = joined([[row(4, 64), row(2, 8, "tp")], [row(4, 64), row(2, 16, "tp")]], notes)
    assert [(r["axis"], r["count"], r["bytes"]) for r in found] == [
        ("dp_shard", 4, [64, 64]),
        ("tp", 2, [8, 16]),
    ]
    assert notes == []


def test_a_kind_whose_count_depends_on_the_size_is_one_row_with_a_note() -> None:
    """Two rows of one kind could not be told apart in another trace."""
    notes: list[str] = []
    (found,) = joined([[row(4, 64)], [row(5, 80)]], notes)
    assert (found["count"], found["bytes"]) == (5, [64, 80])
    assert len(notes) == 1
    assert "[4, 5] calls" in notes[0]


def test_a_kind_that_one_size_lacks_has_no_bytes_there() -> None:
    notes: list[str] = []
    (found,) = joined([[], [row(1, 16)]], notes)
    assert (found["count"], found["bytes"]) == (1, [0, 16])
    assert len(notes) == 1
