"""What each knob does."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from api.pages.charts import Effect
from api.pages.charts.words import TEXT_PX, width_px
from tests.api.pages.charts.examples import (
    EFFECTS,
    HOSTILE,
    effect_value,
    knobs,
    parsed,
    share,
    with_class,
    words,
)
from tests.profiles import examples

amounts = st.none() | st.floats(min_value=1e-3, max_value=1e7)


@checked(max_examples=examples(60))
@given(st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=8))
def test_every_value_has_a_row_within_its_panel(
    found: list[tuple[float | None, float | None, bool]],
) -> None:
    values = tuple(
        effect_value(str(n), speed, memory, note="a note" if noted else "")
        for n, (speed, memory, noted) in enumerate(found)
    )
    root = parsed(knobs((Effect(knob="knob", values=values),)))
    (panel,) = with_class(root, "chart-panel")
    height = float(panel.get("height", ""))
    labels = list(with_class(panel, "chart-value"))
    assert [label.text for label in labels] == [str(n) for n in range(len(found))]
    places = [float(label.get("y", "")) for label in labels]
    assert all(b - a >= 2 * TEXT_PX for a, b in pairwise(places))
    assert all(0 < y < height for y in places)
    for use in panel.iter("use"):
        assert 0 <= share(use.get("x", "")) <= 1
    lines = list(with_class(panel, "chart-memory-line"))
    assert all(6.0 <= float((e.get("x1") or "").removesuffix("em")) <= 9.6 for e in lines)


@pytest.mark.parametrize(
    ("speeds", "labels"),
    [
        ((10.0, 95.0), ["0", "50"]),
        ((71_000.0, 80_500.0), ["70k", "80k"]),
        ((4_464.0, 8_596.0), ["6k", "8k"]),
        ((6_101.0, 12_000.0, 18_000.0, 291_000.0), ["10k"]),
    ],
)
def test_labels_of_ticks_do_not_touch(speeds: tuple[float, ...], labels: list[str]) -> None:
    values = tuple(effect_value(str(n), speed) for n, speed in enumerate(speeds))
    root = parsed(knobs((Effect(knob="knob", values=values),)))
    (panel,) = with_class(root, "chart-panel")
    assert [one.text for one in with_class(panel, "chart-tick")] == labels


def test_panels_share_one_scale() -> None:
    root = parsed(knobs(EFFECTS))
    first, second = with_class(root, "chart-panel")
    best = [
        share(use.get("x", ""))
        for panel in (first, second)
        for group in with_class(panel, "chart-is-best")
        for use in group.iter("use")
    ]
    assert len(best) == 2
    assert best[0] == best[1], "the answer is at one place in all panels"
    assert words(first, "chart-tick") == words(second, "chart-tick")


@pytest.mark.parametrize(("memory", "keys"), [(512.0, ["memory, GiB"]), (None, [])])
def test_the_unit_of_memory_is_told_where_no_speed_is_known(
    memory: float | None, keys: list[str]
) -> None:
    root = parsed(knobs((Effect(knob="knob", values=(effect_value("a", None, memory),)),)))
    assert [
        key.text for one in with_class(root, "chart-legend") for key in one.iter("span") if key.text
    ] == keys


def test_numbers_stand_beside_their_marks() -> None:
    first, _ = with_class(parsed(knobs(EFFECTS)), "chart-panel")
    assert words(first, "chart-figure") == ["8,900", "61.2", "9,412", "58.2"]
    assert words(first, "chart-note") == ["out of memory"]


def test_lines_of_memory_are_to_scale() -> None:
    values = (effect_value("a", 5.0, 10.0), effect_value("b", 5.0, 5.0))
    (panel,) = with_class(parsed(knobs((Effect(knob="k", values=values),))), "chart-panel")
    lines = list(with_class(panel, "chart-memory-line"))
    ends = [[float((e.get(k) or "").removesuffix("em")) for k in ("x1", "x2")] for e in lines]
    full, half = (end - start for start, end in ends)
    assert full == pytest.approx(2 * half)


def test_a_note_has_a_line_of_its_own_below_numbers() -> None:
    _, second = with_class(parsed(knobs(EFFECTS)), "chart-panel")
    (note,) = with_class(second, "chart-note")
    row = next(e for e in with_class(second, "chart-value") if e.text == "8")
    assert float(note.get("y", "")) - float(row.get("y", "")) >= TEXT_PX


def test_panels_say_in_words_what_they_show() -> None:
    root = parsed(knobs(EFFECTS))
    said = [e.text for e in root.iter("desc")]
    assert said[0] == (
        "ddp: speed unknown, out of memory; "
        "shard_grad_op: 8,900 (8,722 to 9,078) tokens/s per GPU, 61.2 memory, GiB, measured; "
        "full_shard: 9,412 (9,224 to 9,600) tokens/s per GPU, 58.2 memory, GiB, measured, "
        "the answer."
    )


def test_long_words_are_cut_to_their_room() -> None:
    value = effect_value(HOSTILE, None, 5.0, note=HOSTILE)
    root = parsed(knobs((Effect(knob=HOSTILE, values=(value,)),)))
    room = {"chart-name": 25.0, "chart-value": 8.6, "chart-note": 13.0}
    for class_, most_em in room.items():
        (text,) = with_class(root, class_)
        assert (text.text or "").endswith("…")
        assert width_px(text.text or "") <= most_em * TEXT_PX + 0.1


def test_no_knob_and_a_knob_without_values() -> None:
    assert words(parsed(knobs(())), "chart-nothing") == ["No knob has been tried yet."]
    assert len(list(with_class(parsed(knobs((Effect(knob="k", values=()),))), "chart-panel"))) == 1
