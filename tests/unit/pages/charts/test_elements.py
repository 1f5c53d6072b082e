"""Scales, words, axes, and elements."""

from itertools import pairwise
from math import floor, inf, isclose, log10

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from api.pages.charts import scales, svg
from api.pages.charts.scales import TEXT_PX, Interval, Scale, scale_for, width_px
from api.pages.charts.svg import NARROW_PX, Plot, element, x_axis, y_axis
from tests.unit.pages.charts.examples import parsed, share, with_class
from tuner.core.quantity import UNKNOWN, Provenance, Quantity

numbers = st.floats(min_value=1e-6, max_value=1e12)
many = st.lists(numbers, min_size=1, max_size=30)


def is_nice(step: float) -> bool:
    leading = step / 10.0 ** floor(log10(step) + 1e-9)
    return any(isclose(leading, m, rel_tol=1e-6) for m in (1, 2, 5, 10))


# -- scales -----------------------------------------------------------------------------------


@given(numbers)
def test_steps_are_1_2_or_5(least: float) -> None:
    step = scales.nice_step(least)
    assert is_nice(step)
    assert least * (1 - 1e-6) <= step <= 2.5 * least * (1 + 1e-6)


@given(many, st.integers(min_value=1, max_value=8))
def test_linear_ticks_are_multiples_of_a_nice_step_within_the_scale(
    values: list[float], count: int
) -> None:
    scale = Scale(low=scale_for(values).low, high=scale_for(values).high)
    ticks = scale.ticks(count)
    assert 1 <= len(ticks) <= max(count + 1, 3)
    assert list(ticks) == sorted(set(ticks))
    slack = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - slack <= t <= scale.high + slack for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert all(is_nice(gap) and isclose(gap, gaps[0], rel_tol=1e-6) for gap in gaps)


@given(numbers, st.floats(min_value=20, max_value=1e9), st.integers(min_value=2, max_value=8))
def test_logarithmic_ticks_are_1_2_or_5_times_powers_of_ten(
    low: float, ratio: float, count: int
) -> None:
    ticks = Scale(low=low, high=low * ratio, is_log=True).ticks(count)
    assert 1 <= len(ticks) <= max(count, 2)
    assert all(is_nice(tick) and low <= tick <= low * ratio for tick in ticks)


@given(many, st.lists(numbers, max_size=2))
def test_every_number_lies_on_its_scale(values: list[float], include: list[float]) -> None:
    scale = scale_for(values, include=include)
    order = sorted((*values, *include))
    assert scale.low <= order[0]
    assert order[-1] <= scale.high
    places = [scale.at(value) for value in order]
    assert places == sorted(places)


def test_where_scales_begin_and_when_they_are_logarithmic() -> None:
    assert scale_for([]) == Scale(low=0.0, high=1.0)
    assert scale_for([5210.0, 9412.0, 3000.0]).low == 0
    assert scale_for([8900.0, 9412.0]).low > 0
    assert scale_for([1.0, 3.0, 10.0, 100.0, 1000.0]).is_log
    assert not scale_for([10.0, 9000.0, 9100.0, 9400.0]).is_log, "one that is slow is no reason"
    assert not scale_for([0.0, 1.0, 2.0, 1000.0]).is_log, "0 has no logarithm"
    assert scale_for([0.3, 0.5], include=[76.0]).is_log, "a small model on a large device"


def test_intervals() -> None:
    def quantity(low: float, value: float, high: float) -> Quantity:
        return Quantity(value=value, low=low, high=high, provenance=Provenance.MEASURED)

    assert scales.interval_of(quantity(1.0, 2.0, 4.0), 2.0) == Interval(4.0, 2.0, 8.0)
    assert scales.interval_of(UNKNOWN) is None
    assert scales.interval_of(quantity(1.0, 2.0, inf)) is None
    assert scales.reach(Interval(10.0, 1.0, 12.0)) == (5.0, 10.0, 12.0)
    assert scales.reach(Interval(10.0, 9.0, 1e9)) == (9.0, 10.0, 20.0)
    assert scales.range_words(Interval(9412, 9370, 9455)) == "9,412 (9,370 to 9,455)"
    assert scales.range_words(Interval(9412, 9412, 9412)) == "9,412"


# -- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "values", "written"),
    [
        (scales.figure, [9412.4, 100, 43.14, 1.9, 0.5124], "9,412 100 43.1 1.90 0.512"),
        (scales.figure, [0, 3e-5, 1.25e9], "0 3e-05 1.25e+09"),
        (scales.tick_words, [0, 0.5, 5000, 1.5e6, 2e9], "0 0.5 5,000 1.5M 2G"),
        (scales.short_tick_words, [0, 500, 2500, 80_000, 1.5e6], "0 500 2.5k 80k 1.5M"),
    ],
)
def test_numbers_as_they_are_written(write: object, values: list[float], written: str) -> None:
    assert [write(value) for value in values] == written.split()  # type: ignore[operator]


@given(st.lists(st.floats(min_value=1e-9, max_value=1e15), min_size=1, max_size=9))
def test_labels_of_an_axis_differ_and_are_short(values: list[float]) -> None:
    scale = scale_for(values)
    for ticks in (scale.ticks(7), Scale(low=scale.low, high=scale.high).ticks(7)):
        labels = list(map(scales.tick_words, ticks))
        assert len(set(labels)) == len(labels)
        assert all(len(label) <= 8 for label in labels), labels


@given(st.text(max_size=80), st.floats(min_value=20, max_value=400))
def test_shortened_words_fit(said: str, most_px: float) -> None:
    short = scales.shortened(said, most_px)
    assert width_px(short) <= most_px
    assert short == said or (short.endswith("…") and said.startswith(short[:-1]))


# -- axes and legends -------------------------------------------------------------------------


@given(st.lists(st.floats(1e-4, 1e9), min_size=1, max_size=20), st.booleans())
def test_labels_of_memory_do_not_touch_in_the_narrowest_window(
    found: list[float], is_flush: bool
) -> None:
    axis = parsed(x_axis(scale_for(found), 100, is_flush=is_flush))
    ends = []
    for label in with_class(axis, "chart-tick"):
        width, at = width_px(label.text or ""), NARROW_PX * share(label.get("x", ""))
        left = {"start": 0.0, "middle": width / 2, "end": width}[label.get("text-anchor", "")]
        ends.append((at - left, at - left + width))
    assert ends
    assert all(b[0] - a[1] >= TEXT_PX for a, b in pairwise(ends))
    assert ends[-1][1] <= NARROW_PX + (0.1 if is_flush else 16)


@given(st.lists(st.floats(min_value=0.1, max_value=1e9), min_size=1, max_size=20))
def test_labels_of_speed_are_a_line_apart_and_beside_the_plot(found: list[float]) -> None:
    plot = Plot(x=Scale(low=0, high=1), y=scale_for(found), height=200.0)
    labels = list(with_class(parsed(y_axis(plot)), "chart-tick"))
    places = sorted(float(label.get("y", "")) for label in labels)
    assert places
    assert 0 <= places[0] <= places[-1] <= 200
    assert all(b - a >= 1.5 * TEXT_PX for a, b in pairwise(places))
    assert all(width_px(label.text or "") <= 5 * TEXT_PX - 4 for label in labels)


# -- elements ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (element("a", "<b>&", title="\"'><"), '<a title="&#34;&#39;&gt;&lt;">&lt;b&gt;&amp;</a>'),
        (element("g", element("text", "&")), "<g><text>&amp;</text></g>"),
        (element("g", class_="a", text_anchor="end", x=None), '<g class="a" text-anchor="end"/>'),
        (element("g"), "<g/>"),
        (element("span", ""), "<span></span>"),
        (element("b", "a\x00\x1b\ud800\ufffeb\n"), "<b>a\ufffd\ufffd\ufffd\ufffdb\n</b>"),
        (svg.text("a", 0, 1.23456), '<text x="0" y="1.23">a</text>'),
        (svg.staircase([(0, 10.0), (0.5, 5.0)], 1.0, "c"),
         '<path d="M0 10L500 10L500 5L1000 5" class="c"/>'),
    ],
)  # fmt: skip
def test_elements_are_escaped_and_short(made: Markup, written: str) -> None:
    assert made == written
    assert isinstance(made, Markup)


def test_no_two_symbols_look_alike_without_colour() -> None:
    names = (*Provenance, svg.OOM, svg.FAILED, svg.BEYOND, svg.BEST)
    drawn = dict(zip(names, parsed(svg.symbols("p", names)), strict=True))
    assert len({(g[0].get("d"), g[0].get("class")) for g in drawn.values()}) == len(names)
    filled = {n for n in Provenance if drawn[n][0].get("class") == "chart-solid"}
    assert filled == {Provenance.MEASURED, Provenance.EMULATED}, "what ran is filled"
    ((circle, shape),) = parsed(svg.symbols("p", ["measured"], size=0.7, target_px=12.0))
    assert (circle.get("r"), shape.get("transform")) == ("12", "scale(0.7)")
