"""Numbers and names as charts write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.charts.data import Interval
from api.pages.charts.scales import Scale, scale_for
from api.pages.charts.words import (
    column,
    cut,
    figure,
    range_words,
    short_tick_words,
    shortened,
    tick_words,
    width_px,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (9412.4, "9,412"),
        (100, "100"),
        (43.14, "43.1"),
        (1.9, "1.90"),
        (0.5124, "0.512"),
        (0, "0"),
        (3e-5, "3e-05"),
        (1.25e9, "1.25e+09"),
    ],
)
def test_figures_have_three_digits_or_more(value: float, written: str) -> None:
    assert figure(value) == written


def test_a_column_has_the_decimals_of_its_largest() -> None:
    assert column([21.44, 3.7, 0.01]) == ("21.4", "3.7", "<0.1")
    assert column([1.9, 0.0]) == ("1.90", "0.00")
    assert column([4000, 20]) == ("4,000", "20")
    assert column([]) == ()


def test_a_range_only_where_there_is_one() -> None:
    assert range_words(Interval(value=9412, low=9370, high=9455)) == "9,412 (9,370 to 9,455)"
    assert range_words(Interval(value=9412, low=9412, high=9412)) == "9,412"


def test_ticks_are_written_shortly() -> None:
    assert tick_words([0, 0.5, 5000, 1.5e6, 2e9]) == ("0", "0.5", "5,000", "1.5M", "2G")


def test_labels_where_there_is_little_room_are_short() -> None:
    assert short_tick_words([0, 500, 2500, 80_000, 1.5e6]) == ("0", "500", "2.5k", "80k", "1.5M")


@given(st.lists(st.floats(min_value=1e-9, max_value=1e15), min_size=1, max_size=9))
def test_labels_of_an_axis_differ_and_are_short(values: list[float]) -> None:
    scale = scale_for(values)
    for ticks in (scale.ticks(7), Scale(low=scale.low, high=scale.high).ticks(7)):
        labels = tick_words(ticks)
        assert len(set(labels)) == len(labels)
        assert all(len(label) <= 8 for label in labels), labels


@given(st.text(max_size=80), st.floats(min_value=20, max_value=400))
def test_shortened_words_fit(words: str, most_px: float) -> None:
    short = shortened(words, most_px)
    assert width_px(short) <= most_px
    assert short == words or (short.endswith("…") and words.startswith(short[:-1]))


def test_wide_characters_are_wide_and_marks_on_others_are_not() -> None:
    assert width_px("模型") == width_px("abcd")
    assert width_px("🧑") == width_px("ab")
    assert width_px("e\u0301") == width_px("e")


def test_cut_says_that_something_is_missing() -> None:
    assert cut("full_shard", 10) == "full_shard"
    assert cut("full_shard, x", 10) == "full_shar…"
