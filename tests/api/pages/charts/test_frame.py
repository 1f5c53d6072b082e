"""Axes and legends."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from api.pages.charts.frame import NARROW_PX, Plot, legend, line_key, x_axis, y_axis
from api.pages.charts.scales import Scale, scale_for
from api.pages.charts.words import TEXT_PX, width_px
from tests.api.pages.charts.examples import parsed, share, with_class, words

values = st.lists(st.floats(min_value=1e-4, max_value=1e9), min_size=1, max_size=20)


@given(values, st.booleans())
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


def test_a_label_alone_is_drawn_though_it_is_too_wide() -> None:
    axis = parsed(x_axis(Scale(low=999.0, high=1000.0), 100, ticks=[1000.0]))
    assert words(axis, "chart-tick") == ["1,000"]


@given(st.lists(st.floats(min_value=0.1, max_value=1e9), min_size=1, max_size=20))
def test_labels_of_speed_are_a_line_apart_and_beside_the_plot(found: list[float]) -> None:
    plot = Plot(x=Scale(low=0, high=1), y=scale_for(found), height=200.0)
    labels = list(with_class(parsed(y_axis(plot)), "chart-tick"))
    places = sorted(float(label.get("y", "")) for label in labels)
    assert places
    assert places[0] >= 0
    assert places[-1] <= 200
    assert all(b - a >= 1.5 * TEXT_PX for a, b in pairwise(places))
    assert all(width_px(label.text or "") <= 5 * TEXT_PX - 4 for label in labels)


def test_upwards_is_more() -> None:
    plot = Plot(x=Scale(low=0, high=1), y=Scale(low=0, high=10), height=200)
    assert (plot.down(0), plot.down(5), plot.down(10)) == (200, 100, 0)


def test_a_legend_has_an_entry_for_each_key() -> None:
    made = legend([(line_key("chart-limit"), "the <limit>"), (line_key("chart-grid"), "grid")])
    assert words(parsed(made), "chart-legend") == ["the <limit>grid"]
    assert legend([]) == Markup()
