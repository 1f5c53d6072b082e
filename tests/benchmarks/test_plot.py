import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def plot(benchmark):
    return benchmark("plot")


def circles(plot, **series):
    panel = plot.Panel(
        title="t", unit="GiB", series=[plot.Series(name="s", color="#0072B2", **series)]
    )
    root = ElementTree.fromstring(plot.svg([panel]))
    found = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")]
    return panel, found[:-1]  # the last is the legend's


def test_a_right_prediction_lies_on_the_diagonal(plot) -> None:
    panel, points = circles(plot, points=[(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)])
    for x, y in points:
        assert x - plot.LEFT == pytest.approx(plot.TOP + plot.SIDE - y, abs=0.1)
    assert points[0] < points[1] < points[2]
    low, high = panel.limits
    assert low < 1
    assert high > 100


def test_equal_ratios_are_equally_far(plot) -> None:
    _, points = circles(plot, points=[(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)])
    steps = [b[0] - a[0] for a, b in pairwise(points)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)


def test_what_is_predicted_too_high_lies_above(plot) -> None:
    _, ((x, y),) = circles(plot, points=[(10.0, 20.0)])
    assert plot.TOP + plot.SIDE - y > x - plot.LEFT


def test_ticks_are_one_two_and_five(plot) -> None:
    assert plot.ticks(0.9, 60.0) == [1, 2, 5, 10, 20, 50]
    assert plot.ticks(3.0, 4.0) == []


def test_names_are_escaped(plot) -> None:
    panel = plot.Panel(
        title="<&>", unit="s", series=[plot.Series(name="<b>", color="red", points=[(1.0, 1.0)])]
    )
    texts = [t.text for t in ElementTree.fromstring(plot.svg([panel])).iter(f"{SVG}text")]
    assert "<&>" in texts
    assert "<b> (1)" in texts
