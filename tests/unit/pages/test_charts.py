"""Whatever is drawn lies within its plot, one mark for each thing that is known."""

import re
from math import floor, isclose, log10

from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from api.pages.charts import (
    EXTRAPOLATED,
    HEIGHT_PX,
    OUTSIDE,
    PROGRESS_PX,
    RAIL_PX,
    STOPPED,
    Series,
    figure,
    memory_bar,
    progress,
    scale_for,
    scatter,
    tick_words,
)
from api.pages.render import environment
from tests.profiles import examples
from tests.unit.pages.html import read_part
from tests.unit.pages.made import question, study
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.results.points import BestSoFar

numbers = st.floats(min_value=1e-3, max_value=1e9)


def known(value, provenance=Provenance.MEASURED):
    if value is None:
        return UNKNOWN
    return Quantity(value=value, low=0.97 * value, high=1.03 * value, provenance=provenance)


def point(number, gib, speed, over=None, outcome=Outcome.OK, provenance=Provenance.MEASURED):
    """A configuration that was run; it fits unless it is over the limit, or crashed."""
    return Evaluation(
        settings=Settings(micro_batch_size=number + 1),
        fidelity=Fidelity.MEASURED,
        outcome=outcome,
        fits=None if outcome is Outcome.CRASHED else over is None,
        needed_bytes=known(gib, provenance).scaled(GIB),
        over_bytes=over,
        tokens_per_s_per_gpu=known(speed, provenance),
    )


def placed(*points, limit_gib=76.0, best=None):
    def href(one):
        return f"#p{one.settings.micro_batch_size - 1}"

    return scatter([Series(points, href, limit_gib * GIB, best)], per="GPU")


def drawn(macro, chart):
    macros = environment().get_template("charts.html").module
    return read_part(getattr(macros, macro)(chart))


@st.composite
def points(draw):
    found = []
    for number in range(draw(st.integers(min_value=0, max_value=12))):
        outcome = draw(st.sampled_from((Outcome.OK, Outcome.OOM, Outcome.CRASHED)))
        speed = draw(numbers) if outcome is Outcome.OK else None
        over = draw(st.none() | numbers) if outcome is Outcome.OK else None
        over = 1.0 if outcome is Outcome.OOM else over
        found.append(point(number, draw(st.none() | numbers), speed, over, outcome))
    return found


@checked(max_examples=examples(30))
@given(points(), numbers)
def test_every_configuration_lies_within_the_plot(found, limit):
    made = placed(*found, limit_gib=limit)
    shown = [p for p in found if p.needed_gib.value is not None or p.outcome is Outcome.OOM]
    assert len(made.marks) == len(shown)
    for mark in made.marks:
        assert 0 <= mark.across <= 100
        assert 0 <= mark.down <= HEIGHT_PX + RAIL_PX
        assert all(0 <= end <= HEIGHT_PX for end in mark.whisker)
    plot = drawn("scatter", made).one("svg", class_="chart-plot")
    assert sorted(a["href"] for a in plot.find("a")) == sorted(mark.href for mark in made.marks)


def test_the_front_is_of_the_marks():
    """Also of one that was stopped early, and needs the least; no prediction is before what ran."""
    light = point(1, 10.0, 800.0, outcome=Outcome.STOPPED_EARLY)
    middle, fast = point(2, 40.0, 900.0), point(3, 70.0, 1000.0)
    beaten, large = point(4, 50.0, 850.0), point(5, 90.0, 2000.0, over=14.0 * GIB)
    hoped = point(6, 5.0, 3000.0, outcome=None, provenance=Provenance.PREDICTED)
    made = placed(light, middle, fast, beaten, large, hoped, best=fast.settings)
    assert {mark.href for mark in made.marks if mark.front} == {"#p1", "#p2", "#p3"}
    shapes = {mark.href: mark.shape for mark in made.marks}
    assert (shapes["#p1"], shapes["#p2"], shapes["#p6"]) == (STOPPED, "measured", "predicted")
    in_part = placed(point(2, 40.0, 900.0, provenance=Provenance.PREDICTED))
    assert in_part.marks[0].shape == EXTRAPOLATED, "it ran, and is not dressed as measured"
    assert [mark.best for mark in made.groups[-1][1]] == [True], "on top"
    assert "the answer makes 1,000 (970 to 1,030)" in made.said


def test_a_limit_far_away_does_not_squeeze_the_crowd():
    near = placed(point(1, 40.0, 900.0), point(2, 60.0, 1000.0))
    assert near.plot.x.high >= near.limits[0][0]
    far = placed(point(1, 0.2, 900.0), point(2, 0.3, 1000.0))
    assert far.plot.x.high < far.limits[0][0]
    assert far.whole[0].high > far.limits[0][0]
    assert drawn("scatter", far).one("text", class_="chart-out").text == "limit 77,824 MiB →"


def test_words_of_several_limits_have_their_unit_and_a_line_each():
    one = point(1, 60.0, 900.0)
    limits = (76.0, 75.7, 75.70001)
    made = scatter([Series([one], lambda _: "#", gib * GIB, None) for gib in limits], per="GPU")
    said = drawn("scatter", made).find("text", class_="chart-out")
    assert [text.text for text in said] == ["limit 75.7 GiB", "limit 76.0 GiB"]
    assert len({text["y"] for text in said}) == 2


@checked(max_examples=examples(30))
@given(st.lists(st.none() | numbers, max_size=30))
def test_each_probe_is_a_mark_and_the_best_never_gets_worse(found):
    best, steps = None, []
    for number, speed in enumerate(found, start=1):
        best = max(filter(None, (best, speed)), default=None)
        steps.append(BestSoFar(
            number=number, probe_id=number, fidelity=Fidelity.MEASURED, best=best,
            outcome=Outcome.OK if speed else Outcome.HOST_OOM,
            tokens_per_s_per_gpu=known(speed),
        ))  # fmt: skip
    made = progress(steps, per="GPU")
    assert len(made.marks) == len(found)
    assert all(0 < mark.across < 100 and 0 <= mark.down <= PROGRESS_PX for mark in made.marks)
    downs = [float(down) for down in re.findall(r"[V ]([\d.]+)", made.path)]
    assert downs == sorted(downs, reverse=True)
    shown = str(drawn("progress", made))
    assert None not in found or "host out of memory" in shown


@given(st.dictionaries(st.sampled_from(["parameters", "logits_and_loss", OUTSIDE, "x"]),
                       st.floats(min_value=0, max_value=1e12)))  # fmt: skip
def test_parts_of_memory_lie_side_by_side(sizes):
    made = memory_bar(sizes, study(question(), []), "Memory")
    assert len(made.parts) == sum(size > 0 for size in sizes.values())
    end = 0.0
    for part in made.parts:
        assert isclose(part.left, end, abs_tol=1e-6)
        end = part.left + part.width
    assert end <= 100 + 1e-6
    shown = drawn("memory", made)
    assert [one.text.split("\n")[0] for one in shown.find("title")] == [
        f"{part.name}: {part.size}" for part in made.parts
    ]


@given(st.lists(st.floats(min_value=1e-6, max_value=1e12), min_size=1, max_size=30),
       st.integers(min_value=1, max_value=8))  # fmt: skip
def test_ticks_are_multiples_of_1_2_or_5_within_the_scale(values, count):
    scale = scale_for(values)
    assert scale.low <= min(values) <= max(values) <= scale.high
    ticks = scale.ticks(count)
    assert len(ticks) <= count + 1
    slack = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - slack <= tick <= scale.high + slack for tick in ticks)
    if len(ticks) > 1:
        gap = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        leading = gap / 10.0 ** floor(log10(gap) + 1e-9)
        assert any(isclose(leading, m, rel_tol=1e-6) for m in (1, 2, 5, 10))


def test_numbers_as_they_are_written():
    assert [figure(n) for n in (9412.4, 43.12, 5.123, 0.5123, 0, 1.25e9)] == [
        "9,412", "43.1", "5.12", "0.512", "0", "1.25e+09",
    ]  # fmt: skip
    assert [tick_words(n) for n in (0, 0.5, 5000, 1.5e6)] == ["0", "0.5", "5,000", "1.5M"]
