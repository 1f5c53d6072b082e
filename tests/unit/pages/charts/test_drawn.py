"""Whatever is drawn lies within its plot, one mark for each thing that is known."""

from itertools import pairwise
from math import floor, isclose, log10

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from api.pages.charts import progress, small_multiples
from api.pages.charts.scales import Scale, scale_for
from tests.profiles import examples
from tests.unit.pages.charts.examples import (
    bar,
    coordinates,
    effect,
    ended,
    parsed,
    point,
    scattered,
    share,
    value,
    with_class,
)
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.results import Point, PointKind

numbers = st.floats(min_value=1e-3, max_value=1e9)
maybe = st.none() | st.floats(min_value=1e-3, max_value=1e7)


@st.composite
def points(draw):
    found = []
    for number in range(draw(st.integers(min_value=0, max_value=12))):
        kind = draw(st.sampled_from(PointKind))
        speed = None if kind in (PointKind.OOM, PointKind.OTHER) else draw(numbers)
        more = {"provenance": draw(st.sampled_from(Provenance)), "on_front": draw(st.booleans())}
        found.append(point(number, draw(st.none() | numbers), speed, kind=kind, **more))
    return tuple(found)


@checked(max_examples=examples(30))
@given(points(), numbers)
def test_every_configuration_lies_within_the_plot(found: tuple[Point, ...], limit: float) -> None:
    plot = next(parsed(scattered(found, limit_bytes=limit * GIB)).iter("svg"))
    height = float(plot.get("height", ""))
    for use in (use for link in plot.iter("a") for use in link.findall("use")):
        assert 0 <= share(use.get("x", "")) <= 1
        assert 0 <= float(use.get("y", "")) <= height
    for line in plot.iter("path"):
        if (line.get("class") or "") in {"chart-whisker", "chart-front-line"}:
            ends = coordinates(line)
            assert all(0 <= x <= 1000 for x in ends[::2])
            assert all(0 <= y <= height for y in ends[1::2])
    shown = sum(p.memory_gib.value is not None or p.kind is PointKind.OOM for p in found)
    assert len(list(plot.iter("a"))) == shown


def test_links_stay_on_this_site():
    for href in ("javascript:alert(1)", "//evil.example", "/\\evil.example"):
        with pytest.raises(AssertionError):
            scattered((point(1, 40.0, 5000.0),), lambda _, href=href: href)


@checked(max_examples=examples(30))
@given(st.lists(st.none() | numbers, max_size=30))
def test_each_probe_is_a_mark_and_the_best_never_gets_worse(found: list[float | None]) -> None:
    plot = next(parsed(progress(ended(*found), per="GPU")).iter("svg"))
    marks = list(plot.iter("use"))
    assert len(marks) == len(found)
    assert all(0 < share(use.get("x", "")) < 1 for use in marks)
    assert all(0 <= float(use.get("y", "")) <= 200 for use in marks)
    for path in with_class(plot, "chart-best-line"):
        ys = coordinates(path)[1::2]
        assert ys == sorted(ys, reverse=True)


@checked(max_examples=examples(30))
@given(st.lists(st.tuples(maybe, maybe, st.booleans()), max_size=8))
def test_every_value_of_a_knob_has_a_row(
    found: list[tuple[float | None, float | None, bool]],
) -> None:
    values = [
        value(str(n), speed, memory, note="a note" if noted else "")
        for n, (speed, memory, noted) in enumerate(found)
    ]
    root = parsed(small_multiples((effect(*values),), per="GPU"))
    (panel,) = with_class(root, "chart-panel")
    labels = list(with_class(panel, "chart-value"))
    assert [label.text for label in labels] == [str(n) for n in range(len(found))]
    places = [0.0, *(float(label.get("y", "")) for label in labels), float(panel.get("height", ""))]
    assert all(b - a >= 12 for a, b in pairwise(places))
    assert all(0 <= share(use.get("x", "")) <= 1 for use in panel.iter("use"))


@given(
    st.lists(st.floats(min_value=0, max_value=1e6), max_size=5),
    st.floats(min_value=0.1, max_value=1e6),
    st.floats(min_value=0, max_value=1e3),
)
def test_parts_of_memory_lie_side_by_side(parts, limit, headroom):
    drawn = with_class(parsed(bar(*parts, limit=limit, headroom=headroom)), "chart-part")
    boxes = [e for e in drawn if (e.get("x") or "").endswith("%")]  # in the plot, not of keys
    assert len(boxes) == sum(size > 0 for size in parts)
    end = 0.0
    for box in boxes:
        assert share(box.get("x", "")) == pytest.approx(end, abs=2e-4)
        end = share(box.get("x", "")) + share(box.get("width", ""))
    assert end == pytest.approx(sum(parts) / max(sum(parts), limit + headroom), abs=2e-3)


@given(
    st.lists(st.floats(min_value=1e-6, max_value=1e12), min_size=1, max_size=30),
    st.integers(min_value=1, max_value=8),
)
def test_ticks_are_multiples_of_1_2_or_5_within_the_scale(values, count):
    scale = Scale(low=scale_for(values).low, high=scale_for(values).high)
    assert scale.low <= min(values) <= max(values) <= scale.high
    ticks = scale.ticks(count)
    assert 1 <= len(ticks) <= max(count + 1, 3)
    slack = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - slack <= t <= scale.high + slack for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    for gap in gaps:
        leading = gap / 10.0 ** floor(log10(gap) + 1e-9)
        assert any(isclose(leading, m, rel_tol=1e-6) for m in (1, 2, 5, 10))
        assert isclose(gap, gaps[0], rel_tol=1e-6)
