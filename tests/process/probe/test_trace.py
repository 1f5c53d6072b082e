"""From planted logs to lines and rows; and the blame for errors of dry runs."""

import itertools

import pytest

from workers.probe.dry import server
from workers.probe.dry.ledger import Block, Category, Change, Segment
from workers.probe.dry.trace import CATEGORIES, MOST_LINES, joined, lines, turning_points

FORWARD = Segment(0, "forward", "layer 0")
BACKWARD = Segment(0, "backward", "layer 0")


def block(category=None, phase="forward", death=""):
    return Block(phase, True, False, category, death)


def of(point):
    return {str(c): n for c, n in zip(CATEGORIES, point, strict=True) if n}


def test_moments_are_kept_before_memory_falls_and_at_a_segments_ends():
    held, first, second = (
        block(Category.PARAMETERS),
        block(death="backward"),
        block(death="forward"),
    )
    log = [
        Change(held, 100), FORWARD, Change(first, 10), Change(second, 5), Change(second, -5),
        BACKWARD, Change(first, -10), Change(block(phase="backward"), 3),
    ]  # fmt: skip
    points = turning_points(log)
    assert list(points) == [FORWARD, BACKWARD]
    highest = {"parameters": 100, "activations": 10, "temporaries": 5}
    assert [of(p) for p in points[FORWARD]] == [highest]
    assert [sum(p) for p in points[BACKWARD]] == [110, 103]


def test_a_category_that_becomes_known_late_holds_from_birth():
    gradient = block(phase="backward")
    log = [BACKWARD, Change(gradient, 8), Change(gradient, -8)]
    gradient.category = Category.GRADIENTS_SHARDED
    assert of(turning_points(log)[BACKWARD][0]) == {"gradients_sharded": 8}


def value(line, sizes, at):
    (low, high), (first, second) = sizes, (sum(p) for p in line)
    return first + (second - first) * (at - low) / (high - low)


@pytest.mark.parametrize(
    ("planted", "sizes", "left_out"),
    [
        ([(100, 1), (10, 40), (60, 20), (50, 15), (0, 41)], (1, 2), 15),
        ([(100, 0), (50, 10), (49, 10), (0, 30)], (2, 4), None),
    ],
)
def test_the_envelope_is_exact_at_every_size(planted, sizes, left_out):
    """Planted: intercept and slope of each moment."""
    found, matched = lines([[(a + s * size, 0) for a, s in planted] for size in sizes], sizes)
    assert matched
    for size in (1, 2, 3, 4, 5, 7, 8, 40, 1000):
        highest = max(value(line, sizes, size) for line in found)
        assert highest == max(a + s * size for a, s in planted), size
    slopes = [(sum(high) - sum(low)) / (sizes[1] - sizes[0]) for low, high in found]
    assert slopes == sorted(slopes)
    assert left_out not in slopes
    assert len(set(slopes)) == len(slopes)


def test_other_lines_than_an_envelope():
    unmatched = [[(5, 0), (9, 0)], [(7, 0), (8, 0), (20, 0)]]
    assert lines(unmatched, (1, 2)) == ([((9, 0), (20, 0))], False)  # one through the peaks
    few = [(5, 0), (9, 0), (7, 0)]
    assert lines([few], (3,)) == ([((9, 0),)], True)
    assert lines([few, few], (1, 2), keeps_all=True) == ([(p, p) for p in few], True)
    many = [(total, 0) for total in range(MOST_LINES + 1)]
    assert lines([many], (1,), keeps_all=True) == ([((MOST_LINES, 0),)], True)


def row(count, size, axis="dp_shard"):
    kind = {"op": "all_gather", "axis": axis, "phase": "forward", "overlap": "prefetched"}
    return {**kind, "count": count, "bytes": size}


@pytest.mark.parametrize(
    ("at_sizes", "rows", "note"),
    [
        (
            [[row(4, 64), row(2, 8, "tp")], [row(4, 64), row(2, 16, "tp")]],
            [("dp_shard", 4, [64, 64]), ("tp", 2, [8, 16])],
            None,
        ),
        ([[row(4, 64)], [row(5, 80)]], [("dp_shard", 5, [64, 80])], "[4, 5] calls"),
        ([[], [row(1, 16)]], [("dp_shard", 1, [0, 16])], "[0, 1] calls"),
    ],
)
def test_a_kind_of_collective_is_one_row_with_the_bytes_of_each_size(at_sizes, rows, note):
    notes = []
    found = joined(at_sizes, notes)
    assert [(r["axis"], r["count"], r["bytes"]) for r in found] == rows
    assert len(notes) == (note is not None)
    assert all(str(note) in one for one in notes)


OURS = str(server.OURS / "dry" / "ledger.py")
THEIRS = "/site-packages/transformers/models/some/modeling_some.py"


@pytest.mark.parametrize(
    ("code", "path", "rule", "operator"),
    [
        ("{}['missing']", THEIRS, "stack", "aten.mm.default"),
        ("assert not 1", THEIRS, "stack", "aten.mm.default"),
        ("raise ValueError('no such value')", THEIRS, "stack", "aten.mm.default"),
        ("raise ValueError('refused')", OURS, "stack", "aten.mm.default"),
        ("raise RuntimeError('of anything')", THEIRS, "", "aten.mm.default"),
        # mistakes of the program, and of the machine, refuse no configuration
        *itertools.product(("{}['missing']", "None.shape", "assert not 1"), [OURS], [""], [""]),
        ("raise OSError('no space')", THEIRS, "", ""),
    ],
)
def test_the_blame_for_an_error(code, path, rule, operator, monkeypatch):
    with pytest.raises(Exception) as caught:
        exec(compile(code, path, "exec"), {})
    monkeypatch.setattr(server, "operator_of", lambda _: "aten.mm.default")
    assert server.blame(caught.value) == (rule, operator)
