"""Best so far against probes."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st
from markupsafe import Markup

from api.pages.charts import Step, progress
from api.pages.charts.words import width_px
from tests.api.pages.charts.examples import parsed, share, steps, with_class, words
from tests.profiles import examples

speeds = st.lists(st.none() | st.floats(min_value=1e-3, max_value=1e9), max_size=30)
HEIGHT = 200.0


def drawn(found: tuple[Step, ...]) -> Markup:
    return progress(found, y_label="tokens/s per GPU", title="Search")


@checked(max_examples=examples(60))
@given(speeds)
def test_each_probe_is_a_mark_within_the_plot(found: list[float | None]) -> None:
    plot = next(parsed(drawn(steps(*found))).iter("svg"))
    marks = list(plot.iter("use"))
    assert len(marks) == len(found)
    for use in marks:
        assert 0 < share(use.get("x", "")) < 1
        assert 0 <= float(use.get("y", "")) <= HEIGHT
    for path in with_class(plot, "chart-best-line"):
        ys = [float(n) for n in re.findall(r"[\d.]+", path.get("d", ""))][1::2]
        assert ys == sorted(ys, reverse=True), "the best never gets worse"


@checked(max_examples=examples(60))
@given(st.integers(min_value=1, max_value=900))
def test_probe_numbers_below_the_axis_are_whole_and_apart(count: int) -> None:
    root = parsed(drawn(steps(*[1.0] * count)))
    (axis,) = with_class(root, "chart-x")
    labels = list(with_class(axis, "chart-tick"))
    assert all(1 <= int(label.text or "") <= count for label in labels)
    assert labels[0].text == "1"
    narrow = 213  # less than other plots have: the best's number stands at the right
    places = [(narrow * share(e.get("x", "")), width_px(e.text or "") / 2) for e in labels]
    assert all(b - a >= half + other + 5 for (a, half), (b, other) in pairwise(places))


KINDS = ("chart-is-other", "chart-is-best")


def test_failures_are_crosses_on_the_axis() -> None:
    root = parsed(drawn(steps(5000, None)))
    uses = list(next(root.iter("svg")).iter("use"))
    assert [use.get("href") for use in uses] == ["#progress-oom", "#progress-measured"]
    assert uses[0].get("y") == "200"
    assert uses[0].findtext("title") == "2: full_shard, micro batch 2: oom"


def test_the_best_is_a_staircase_with_its_number_at_the_end() -> None:
    root = parsed(drawn(steps(5000, 4000, 8000, 7000)))
    (line,) = (e for e in with_class(root, "chart-best-line") if e.tag == "path")
    assert (line.get("d") or "").count("L") == 3, "level, up, level"
    assert words(root, "chart-end") == ["8,000"]
    groups = {g.get("class"): [use.findtext("title") or "" for use in g] for g in root.iter("g")}
    numbers = {kind: [int(title.partition(":")[0]) for title in groups[kind]] for kind in KINDS}
    assert numbers == {"chart-is-other": [2, 4], "chart-is-best": [1, 3]}


def test_many_probes_are_small_marks_without_words() -> None:
    chart = drawn(steps(*(float(n % 90 + 1) for n in range(500))))
    root = parsed(chart)
    assert len(chart.encode()) < 50_000
    assert not [use for use in root.iter("use") if use.find("title") is not None]
    assert not list(with_class(root, "chart-whisker"))


def test_the_description_counts() -> None:
    root = parsed(drawn(steps(5000, None, 8000)))
    said = "3 probes ended; 1 of them without a speed; the best makes 8,000 tokens/s per GPU."
    assert root.findtext("svg/desc") == said


def test_nothing_yet_and_nothing_but_failures() -> None:
    assert words(parsed(drawn(())), "chart-nothing") == ["no probe has ended yet"]
    failed = parsed(drawn(steps(None, None)))
    assert words(failed, "chart-nothing") == ["no probe has a speed yet"]
    assert not list(with_class(failed, "chart-end"))
