"""Memory against speed."""

import random
import re
from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from api.pages.charts import Interval, Mark, MarkKind
from tests.api.pages.charts.examples import MARKS, mark, parsed, scattered, share, with_class, words
from tests.profiles import examples
from tuner.quantity import Provenance

HEIGHT = 300.0
RAIL = 34.0
numbers = st.floats(min_value=1e-3, max_value=1e9)


@st.composite
def marks(draw: st.DrawFn) -> tuple[Mark, ...]:
    """Whatever settings may look like."""
    found = []
    for number in range(draw(st.integers(min_value=0, max_value=12))):
        kind = draw(st.sampled_from(MarkKind))
        failed = kind in (MarkKind.OOM, MarkKind.OTHER)
        one = mark(
            number,
            draw(st.none() | numbers),
            None if failed else draw(numbers),
            kind=kind,
            provenance=draw(st.sampled_from(Provenance)),
            on_front=draw(st.booleans()),
        )
        found.append(one)
    return tuple(found)


def place(root: Element, id_: str) -> tuple[float, float]:
    """Where a mark is drawn: share of the width, pixels from the top."""
    (link,) = (e for e in root.iter("a") if e.get("id") == id_)
    use = link.findall("use")[-1]
    return share(use.get("x", "")), float(use.get("y", ""))


@checked(max_examples=examples(60))
@given(marks(), numbers)
def test_everything_lies_within_the_plot(found: tuple[Mark, ...], limit: float) -> None:
    root = parsed(scattered(found, limit=limit))
    plot = next(root.iter("svg"))
    height = float(plot.get("height", ""))
    for link in plot.iter("a"):
        for use in link.findall("use"):
            assert 0 <= share(use.get("x", "")) <= 1
            assert 0 <= float(use.get("y", "")) <= height
    for line in plot.iter("path"):
        if (line.get("class") or "") in {"chart-whisker", "chart-front-line"}:
            ends = [float(n) for n in re.findall(r"[\d.]+", line.get("d", ""))]
            assert all(0 <= x <= 1000 for x in ends[::2])
            assert all(0 <= y <= height for y in ends[1::2])
    shown = sum(m.x is not None or m.kind is MarkKind.OOM for m in found)
    assert len(list(plot.iter("a"))) == shown


def test_more_memory_is_further_right_and_more_speed_higher() -> None:
    root = parsed(scattered(MARKS))
    small, large = place(root, "points-s1"), place(root, "points-s2")
    assert small[0] < large[0]
    assert small[1] > large[1]


def test_what_has_no_speed_lies_on_the_rail() -> None:
    root = parsed(scattered(MARKS))
    for id_ in ("points-s7", "points-s8", "points-s10"):
        assert HEIGHT < place(root, id_)[1] < HEIGHT + RAIL
    assert "no speed" in words(root, "chart-tick")
    assert "no speed" not in words(parsed(scattered(MARKS[:2])), "chart-tick")


def test_out_of_memory_of_unknown_size_lies_beyond_the_limit() -> None:
    root = parsed(scattered(MARKS))
    (region,) = (e for e in with_class(root, "chart-beyond") if e.get("y") == "0")
    start = share(region.get("x", ""))
    assert start < place(root, "points-s8")[0] < 1
    assert start + share(region.get("width", "")) == pytest.approx(1, abs=2e-4)


def test_far_memory_is_put_at_the_edge_and_said_to_be_further() -> None:
    root = parsed(scattered(MARKS))
    assert place(root, "points-s9")[0] == 1
    (link,) = (e for e in root.iter("a") if e.get("id") == "points-s9")
    assert [use.get("href") for use in link.findall("use")] == ["#points-oom", "#points-beyond"]
    assert "500" in (link.findtext("title") or "")
    assert "beyond this axis" in words(root, "chart-legend")[0]


def test_unknown_memory_of_others_is_only_counted() -> None:
    root = parsed(scattered(MARKS))
    assert not [e for e in root.iter("a") if e.get("id") == "points-s11"]
    assert "1 more of unknown memory not shown" in (root.findtext("svg/desc") or "")


def test_links_are_named_by_settings_and_numbers() -> None:
    root = parsed(scattered(MARKS))
    titles = {e.get("id"): e.findtext("title") for e in root.iter("a")}
    assert titles["points-s2"] == (
        "full_shard, micro batch 2: 9,412 (9,224 to 9,600) tokens/s per GPU; "
        "58.2 (57.6 to 58.8) allocated, GiB; measured"
    )
    assert (titles["points-s10"] or "").endswith("ended otherwise; measured")
    assert {e.get("href") for e in root.iter("a")} == {m.href for m in MARKS if m.id != "s11"}


def test_shapes_tell_provenance_and_failures_and_the_answer_has_a_ring() -> None:
    root = parsed(scattered(MARKS))
    shapes = {
        e.get("id"): [use.get("href", "").removeprefix("#points-") for use in e.findall("use")]
        for e in root.iter("a")
    }
    assert shapes["points-s1"] == ["measured"]
    assert shapes["points-s2"] == ["best", "measured"]
    assert shapes["points-s3"] == ["emulated"]
    assert shapes["points-s4"] == ["predicted"]
    assert shapes["points-s7"] == ["oom"]
    assert shapes["points-s10"] == ["failed"]


def test_the_legend_explains_what_is_drawn_and_nothing_else() -> None:
    (legend,) = words(parsed(scattered(MARKS[:1])), "chart-legend")
    assert legend == "measuredPareto frontover the limit"


def test_the_front_is_a_staircase_up_to_the_limit() -> None:
    root = parsed(scattered(MARKS))
    (line,) = (e for e in with_class(root, "chart-front-line") if e.tag == "path")
    ends = [float(n) for n in re.findall(r"[\d.]+", line.get("d", ""))]
    corners = list(zip(ends[::2], ends[1::2], strict=True))
    for (x1, y1), (x2, y2) in pairwise(corners):
        assert x1 == x2 or y1 == y2, "level or upright"
        assert x1 <= x2
        assert y1 >= y2
    (limit,) = with_class(root, "chart-limit")
    assert corners[-1][0] / 1000 == pytest.approx(share(limit.get("x1", "")), abs=2e-4)


def test_the_answer_is_drawn_last_and_says_its_speed() -> None:
    root = parsed(scattered(MARKS))
    assert [e.get("id") for e in root.iter("a")][-1] == "points-s2"
    assert words(root, "chart-end") == ["9,412"]


def test_500_settings_are_a_page_s_worth() -> None:
    chance = random.Random(7)
    found = tuple(
        mark(
            number,
            chance.uniform(5, 120),
            chance.uniform(100, 9000),
            label="full_shard, micro batch 4 x 8, checkpointing full, tp 2, pp 4",
            on_front=number < 30,
            provenance=chance.choice(list(Provenance)),
        )
        for number in range(500)
    )
    chart = scattered(found)
    assert len(chart.encode()) < 120_000
    assert len(list(parsed(chart).iter("a"))) == 500


def test_few_marks_have_whiskers_and_of_many_only_the_front() -> None:
    def whiskers(found: tuple[Mark, ...]) -> int:
        lines = with_class(parsed(scattered(found)), "chart-whisker")
        return sum((line.get("d") or "").count("M") for line in lines)

    plain = tuple(mark(n, 10.0 + n / 4, 100.0 + n) for n in range(200))
    assert whiskers(plain[:10]) == 20
    assert whiskers(plain) == 0
    assert whiskers((*plain, mark(200, 70.0, 400.0, on_front=True))) == 2


def test_certain_numbers_have_no_whisker() -> None:
    certain = Interval(value=5.0, low=5.0, high=5.0)
    root = parsed(scattered((mark(1, None, None, x=certain, y=certain),)))
    assert not list(with_class(root, "chart-whisker"))


def test_nothing_yet() -> None:
    root = parsed(scattered(()))
    assert words(root, "chart-nothing") == ["nothing to show yet"]
    assert root.findtext("svg/desc") == "No settings yet."
    failed = parsed(scattered((mark(1, 40.0, None, kind=MarkKind.OTHER),)))
    assert words(failed, "chart-nothing") == ["nothing ran to its end yet"]


@pytest.mark.parametrize("href", ["javascript:alert(1)", "//evil.example", "/\\evil.example"])
def test_links_stay_on_this_site(href: str) -> None:
    with pytest.raises(AssertionError):
        scattered((mark(1, 40.0, 5000.0, href=href),))
