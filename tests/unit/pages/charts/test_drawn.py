"""Each chart: its marks are where their numbers say, and its words say what is drawn."""

import random
from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from api.pages.charts import progress, small_multiples
from api.pages.charts.memory import Part
from api.pages.charts.scales import TEXT_PX, width_px
from tests.profiles import examples
from tests.unit.pages.charts.examples import (
    POINTS,
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
    words,
)
from tuner.core.evaluation import GIB
from tuner.core.quantity import Provenance
from tuner.results import KnobEffect, Point, PointKind

numbers = st.floats(min_value=1e-3, max_value=1e9)
maybe = st.none() | st.floats(min_value=1e-3, max_value=1e7)

# -- memory against speed ---------------------------------------------------------------------


@st.composite
def points(draw: st.DrawFn) -> tuple[Point, ...]:
    """Any configurations."""
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
    root = parsed(scattered(found, limit_bytes=limit * GIB))
    plot = next(root.iter("svg"))
    height = float(plot.get("height", ""))
    for link in plot.iter("a"):
        for use in link.findall("use"):
            assert 0 <= share(use.get("x", "")) <= 1
            assert 0 <= float(use.get("y", "")) <= height
    for line in plot.iter("path"):
        if (line.get("class") or "") in {"chart-whisker", "chart-front-line"}:
            ends = coordinates(line)
            assert all(0 <= x <= 1000 for x in ends[::2])
            assert all(0 <= y <= height for y in ends[1::2])
    shown = sum(p.memory_gib.value is not None or p.kind is PointKind.OOM for p in found)
    assert len(list(plot.iter("a"))) == shown


@pytest.fixture(scope="module")
def scatter() -> Element:
    return parsed(scattered(POINTS))


def place(root: Element, number: int) -> tuple[float, float]:
    """The place of a mark: share of the width, pixels from the top."""
    (link,) = (e for e in root.iter("a") if e.get("id") == f"points-{number}")
    use = link.findall("use")[-1]
    return share(use.get("x", "")), float(use.get("y", ""))


def test_places_of_marks(scatter: Element) -> None:
    small, large = place(scatter, 0), place(scatter, 1)
    assert small[0] < large[0], "more memory is further right"
    assert small[1] > large[1], "more speed is higher"
    assert all(300 < place(scatter, number)[1] < 334 for number in (6, 7, 9)), "on the rail"
    (region,) = (e for e in with_class(scatter, "chart-beyond") if e.get("y") == "0")
    start = share(region.get("x", ""))
    assert start < place(scatter, 7)[0] < 1, "memory that ran out lies beyond the limit"
    assert start + share(region.get("width", "")) == pytest.approx(1, abs=2e-4)
    assert place(scatter, 8)[0] == 1, "far memory is put at the edge"
    links = list(scatter.iter("a"))
    assert links[-1].get("href") == "?probe=1", "the answer is drawn last"
    assert len(links) == 10, "of unknown memory only what ran out of it is drawn"


def test_500_configurations_are_a_pages_worth() -> None:
    chance = random.Random(7)
    found = tuple(
        point(
            number,
            chance.uniform(5, 120),
            chance.uniform(100, 9000),
            words="full_shard,micro batch 4 x 8,checkpointing full,tp 2,pp 4",
            on_front=number < 30,
            provenance=chance.choice(list(Provenance)),
        )
        for number in range(500)
    )
    chart = scattered(found)
    assert len(chart.encode()) < 120_000
    assert len(list(parsed(chart).iter("a"))) == 500


def test_links_stay_on_this_site() -> None:
    for href in ("javascript:alert(1)", "//evil.example", "/\\evil.example"):
        with pytest.raises(AssertionError):
            scattered((point(1, 40.0, 5000.0),), lambda _, href=href: href)


# -- best so far ------------------------------------------------------------------------------


def of_speeds(*speeds: float | None) -> Element:
    return parsed(progress(ended(*speeds), per="GPU"))


@checked(max_examples=examples(30))
@given(st.lists(st.none() | numbers, max_size=30))
def test_each_probe_is_a_mark_within_the_plot(found: list[float | None]) -> None:
    plot = next(of_speeds(*found).iter("svg"))
    marks = list(plot.iter("use"))
    assert len(marks) == len(found)
    for use in marks:
        assert 0 < share(use.get("x", "")) < 1
        assert 0 <= float(use.get("y", "")) <= 200
    for path in with_class(plot, "chart-best-line"):
        ys = coordinates(path)[1::2]
        assert ys == sorted(ys, reverse=True), "the best never gets worse"


@checked(max_examples=examples(30))
@given(st.integers(min_value=1, max_value=900))
def test_probe_numbers_below_the_axis_are_whole_and_apart(count: int) -> None:
    (axis,) = with_class(of_speeds(*[1.0] * count), "chart-x")
    labels = list(with_class(axis, "chart-tick"))
    assert all(1 <= int(label.text or "") <= count for label in labels)
    assert labels[0].text == "1"
    narrow = 213  # less than other plots have: the best's number stands at the right
    places = [(narrow * share(e.get("x", "")), width_px(e.text or "") / 2) for e in labels]
    assert all(b - a >= half + other + 5 for (a, half), (b, other) in pairwise(places))


# -- knobs ------------------------------------------------------------------------------------


def panels(*effects: KnobEffect) -> list[Element]:
    return list(with_class(parsed(small_multiples(effects, per="GPU")), "chart-panel"))


def ems(line: Element, *names: str) -> list[float]:
    return [float((line.get(name) or "").removesuffix("em")) for name in names]


@checked(max_examples=examples(30))
@given(st.lists(st.tuples(maybe, maybe, st.booleans()), max_size=8))
def test_every_value_has_a_row_within_its_panel(
    found: list[tuple[float | None, float | None, bool]],
) -> None:
    values = [
        value(str(n), speed, memory, note="a note" if noted else "")
        for n, (speed, memory, noted) in enumerate(found)
    ]
    (panel,) = panels(effect(*values))
    height = float(panel.get("height", ""))
    labels = list(with_class(panel, "chart-value"))
    assert [label.text for label in labels] == [str(n) for n in range(len(found))]
    places = [float(label.get("y", "")) for label in labels]
    assert all(b - a >= 2 * TEXT_PX for a, b in pairwise(places))
    assert all(0 < y < height for y in places)
    assert all(0 <= share(use.get("x", "")) <= 1 for use in panel.iter("use"))
    assert all(6.0 <= ems(e, "x1")[0] <= 9.6 for e in with_class(panel, "chart-memory-line"))


# -- memory by category -----------------------------------------------------------------------


def boxes(root: Element, class_: str) -> list[tuple[float, float]]:
    """Left end and width of rectangles in the plot, not of keys."""
    found = [e for e in with_class(root, class_) if (e.get("x") or "").endswith("%")]
    return [(share(e.get("x", "")), share(e.get("width", ""))) for e in found]


@given(
    st.lists(st.floats(min_value=0, max_value=1e6), max_size=5),
    st.floats(min_value=0.1, max_value=1e6),
    st.floats(min_value=0, max_value=1e3),
)
def test_parts_lie_side_by_side_within_the_plot(
    parts: list[float], limit: float, headroom: float
) -> None:
    drawn = boxes(parsed(bar(*parts, limit=limit, headroom=headroom)), "chart-part")
    assert len(drawn) == sum(size > 0 for size in parts)
    end = 0.0
    for left, width in drawn:
        assert left == pytest.approx(end, abs=2e-4)
        end = left + width
    assert end <= 1 + 2e-4
    assert end == pytest.approx(sum(parts) / max(sum(parts), limit + headroom), abs=2e-3)


def test_sizes_are_to_scale_and_listed() -> None:
    root = parsed(bar(20.0, 10.0))
    assert boxes(root, "chart-part") == [(0, 0.25), (0.25, 0.125)]
    assert boxes(root, "chart-room") == [(0, 0.95)]
    assert boxes(root, "chart-headroom") == [(0.95, pytest.approx(0.05))]
    (over,) = with_class(parsed(bar(90.0, 10.0)), "chart-over")
    assert (over.get("x1"), over.get("x2")) == ("76%", "100%")
    root = parsed(bar(20.0, 10.04))
    names = ["".join(name.itertext()) for name in root.iter("bdi")]
    assert dict(zip(names, words(root, "chart-figure"), strict=True)) == {
        "parameters": "20.0 GiB",
        "optimizer state": "10.0 GiB",
        "together": "30.0 GiB",
        "free until the limit": "46.0 GiB",
        "headroom beyond the limit": "4.0 GiB",
    }


def test_parts_are_told_apart_by_letter_and_by_their_own_colour() -> None:
    plot, keys = list(parsed(bar(20.0, 1.0, 10.0)))
    assert words(plot, "chart-letter") == ["A", "C"], "B has no room for its letter"
    assert words(keys, "chart-letter") == ["A", "B", "C"]
    plot, _ = list(parsed(bar(parts=[Part("activations", 5.0, tone=3), Part("other", 5.0)])))
    tones = [e.get("class", "").split()[1] for e in with_class(plot, "chart-part")]
    assert tones == ["chart-tone-3", "chart-tone-2"]
    root = parsed(bar(parts=[Part(f"part {n}", 1.0) for n in range(30)]))
    assert len(boxes(root, "chart-part")) == 30
    assert len(list(with_class(root, "chart-tone-1"))) == 8, "colours begin again"
