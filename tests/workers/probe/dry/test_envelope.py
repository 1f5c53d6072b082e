"""The upper envelope of straight lines in the micro-batch size, on planted points."""

import itertools

from workers.probe.dry.envelope import MOST_LINES, lines


def point(total: int) -> tuple[int, ...]:
    return (total, 0)


def value(line: tuple, sizes: tuple[int, int], at: int) -> float:
    (low, high), (first, second) = sizes, (sum(p) for p in line)
    return first + (second - first) * (at - low) / (high - low)


def test_the_envelope_is_exact_at_every_size() -> None:
    """Planted: intercept and slope of each moment; one never is the highest."""
    planted = [(100, 1), (10, 40), (60, 20), (50, 15), (0, 41)]
    sizes = (1, 2)
    points = [[point(a + s * size) for a, s in planted] for size in sizes]
    found, matched = lines(points, sizes)
    assert matched
    for size in (1, 2, 3, 4, 5, 8, 40, 1000):
        highest = max(value(line, sizes, size) for line in found)
        assert highest == max(a + s * size for a, s in planted), size
    assert (65, 80) not in [tuple(sum(p) for p in line) for line in found]


def test_lines_that_are_highest_nowhere_are_left_out() -> None:
    planted = [(100, 0), (50, 10), (49, 10), (0, 30)]
    found, _ = lines([[point(a + s * size) for a, s in planted] for size in (2, 4)], (2, 4))
    slopes = [(sum(line[1]) - sum(line[0])) / 2 for line in found]
    assert slopes == sorted(slopes)
    assert 10 not in slopes or value(found[slopes.index(10)], (2, 4), 4) >= 90
    for size, line in itertools.product((1, 3, 4, 7), found):
        assert value(line, (2, 4), size) <= max(a + s * size for a, s in planted)


def test_points_that_do_not_match_leave_one_line_through_the_peaks() -> None:
    found, matched = lines([[point(5), point(9)], [point(7), point(8), point(20)]], (1, 2))
    assert not matched
    assert found == [(point(9), point(20))]


def test_one_size_leaves_the_peak() -> None:
    assert lines([[point(5), point(9), point(7)]], (3,)) == ([(point(9),)], True)


def test_all_moments_are_kept_in_their_order_unless_they_are_very_many() -> None:
    few = [point(total) for total in (5, 9, 7)]
    assert lines([few, few], (1, 2), keeps_all=True) == ([(p, p) for p in few], True)
    many = [point(total) for total in range(MOST_LINES + 1)]
    assert lines([many], (1,), keeps_all=True) == ([(point(MOST_LINES),)], True)
