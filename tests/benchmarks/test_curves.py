import xml.etree.ElementTree as ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def curves(benchmark):
    return benchmark("curves")


def drawn(curves, means):
    rows = [{"table": "t", "search": name, "mean": mean} for name, mean in means.items()]
    root = ElementTree.fromstring(curves.picture({"curves": rows}))
    return [line.get("points") for line in root.iter(f"{SVG}polyline")]


def test_equal_factors_of_regret_are_equally_far(curves) -> None:
    steps = [curves.y(0.5) - curves.y(1.0), curves.y(0.05) - curves.y(0.1)]
    assert steps[0] == pytest.approx(steps[1])
    assert curves.y(1.0) == curves.TOP
    assert curves.y(0.0) == curves.y(curves.FLOOR) == curves.TOP + curves.HEIGHT


def test_a_curve_falls_from_left_to_right(curves) -> None:
    points, _legend = drawn(curves, {"random": [1.0, 0.1, 0.01]})
    (x1, y1), (x2, y2), (x3, y3) = (map(float, point.split(",")) for point in points.split())
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert x1 == curves.LEFT
    assert y1 < y2 < y3


def test_only_some_searches_are_drawn_each_with_its_legend(curves) -> None:
    assert len(drawn(curves, {"random": [0.5, 0.4], "grid": [0.5, 0.4], "other": [1, 1]})) == 4
