"""Memory by category, against the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.charts import Part, memory_bar
from tests.api.pages.charts.examples import about, bar, parsed, share, with_class, words

sizes = st.lists(st.floats(min_value=0, max_value=1e6), max_size=5)


def boxes(root: object, class_: str) -> list[tuple[float, float]]:
    """Left end and width of rectangles in the plot, not of keys."""
    found = [e for e in with_class(root, class_) if (e.get("x") or "").endswith("%")]  # type: ignore[arg-type]
    return [(share(e.get("x", "")), share(e.get("width", ""))) for e in found]


@given(sizes, st.floats(min_value=0.1, max_value=1e6), st.floats(min_value=0, max_value=1e3))
def test_parts_lie_side_by_side_within_the_plot(
    parts: list[float], limit: float, headroom: float
) -> None:
    root = parsed(memory_bar(bar(*parts, limit=limit, headroom=headroom)))
    drawn = boxes(root, "chart-part")
    assert len(drawn) == sum(size > 0 for size in parts)
    end = 0.0
    for left, width in drawn:
        assert left == pytest.approx(end, abs=2e-4)
        end = left + width
    assert end <= 1 + 2e-4
    most = max(sum(parts), limit + headroom)
    assert end == pytest.approx(sum(parts) / most, abs=2e-3)


def test_sizes_are_to_scale() -> None:
    root = parsed(memory_bar(bar(20.0, 10.0)))
    assert boxes(root, "chart-part") == [(0, 0.25), (0.25, 0.125)]
    assert boxes(root, "chart-room") == [(0, 0.95)]
    assert boxes(root, "chart-headroom") == [(0.95, pytest.approx(0.05))]


def test_the_list_says_each_size_the_sum_and_what_is_left() -> None:
    root = parsed(memory_bar(bar(20.0, 10.04)))
    figures = words(root, "chart-figure")
    assert figures == ["20.0 GiB", "10.0 GiB", "30.0 GiB", "46.0 GiB", "4.0 GiB"]
    names = ["".join(name.itertext()) for name in root.iter("bdi")]
    assert names == [
        "parameters",
        "optimizer state",
        "together",
        "free until the limit",
        "headroom beyond the limit",
    ]


def test_what_exceeds_the_limit_is_marked_and_counted() -> None:
    root = parsed(memory_bar(bar(90.0, 10.0)))
    (over,) = with_class(root, "chart-over")
    assert (over.get("x1"), over.get("x2")) == ("76%", "100%")
    assert "24.0 GiB" in words(root, "chart-figure")
    names = ["".join(name.itertext()) for name in root.iter("bdi")]
    assert "over the limit" in names
    assert "free until the limit" not in names


def test_parts_are_told_apart_without_colour() -> None:
    root = parsed(memory_bar(bar(20.0, 1.0, 10.0)))
    plot, keys = list(root)
    assert words(plot, "chart-letter") == ["A", "C"], "B has no room for its letter"
    assert words(keys, "chart-letter") == ["A", "B", "C"]


def test_a_category_keeps_its_colour_where_others_are_missing() -> None:
    parts = (Part(name="activations", value=5.0, tone=3), Part(name="other", value=5.0))
    root = parsed(memory_bar(bar(parts=parts)))
    plot, _ = list(root)
    classes = [e.get("class", "").split()[1] for e in with_class(plot, "chart-part")]
    assert classes == ["chart-tone-3", "chart-tone-2"]


def test_more_parts_than_colours_begin_again() -> None:
    parts = tuple(Part(name=f"part {n}", value=1.0) for n in range(30))
    root = parsed(memory_bar(bar(parts=parts)))
    assert len(boxes(root, "chart-part")) == 30
    assert len(list(with_class(root, "chart-tone-1"))) == 8


def test_the_interval_is_a_whisker() -> None:
    root = parsed(memory_bar(bar(40.0, interval=about(40.0, 0.1))))
    line = next(with_class(root, "chart-interval"))
    assert (line.get("x1"), line.get("x2")) == ("45%", "55%")
    certain = parsed(memory_bar(bar(40.0, interval=about(40.0, 0))))
    assert not list(with_class(certain, "chart-interval"))


def test_nothing_known_is_not_nothing_needed() -> None:
    root = parsed(memory_bar(bar(0.0)))
    assert words(root, "chart-nothing") == ["nothing known yet"]
    assert not list(with_class(root, "chart-figure"))
    assert next(root.iter("desc")).text == "Nothing known, of 76.0 GiB."


def test_the_limit_s_words_stay_within_the_plot() -> None:
    for size, anchor in ((10.0, "end"), (4000.0, "start")):
        (label,) = with_class(parsed(memory_bar(bar(size))), "chart-words")
        assert label.get("text-anchor") == anchor


def test_a_limit_is_above_0() -> None:
    with pytest.raises(AssertionError):
        memory_bar(bar(1.0, limit=0.0))
