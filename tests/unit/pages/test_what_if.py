"""What-if: any settings can be chosen, what gives way is said, and the best stands beside it."""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.what_if import (
    ACCUMULATION,
    AT,
    BEFORE,
    KnobControl,
    WhatIfPage,
    fit_words,
    page_of,
    read_moved,
)
from tests.unit.pages.what_if_studies import PREDICTOR, STUDY, predicted_study
from tuner.core.configuration import KNOBS, Settings, Sharding
from tuner.errors import UsageError
from tuner.explain.known import best_known
from tuner.results import Predictor

SUGGESTION = best_known(STUDY)
VALUES = {choice.knob: choice.values for choice in PREDICTOR.choices.knobs}


def _page(**values: Any) -> WhatIfPage:
    return page_of(PREDICTOR, SUGGESTION, {k: str(v) for k, v in values.items()})


def _control(page: WhatIfPage, knob: str) -> KnobControl:
    (found,) = (one for one in page.controls if one.knob == knob)
    return found


def test_without_an_address_it_shows_the_best() -> None:
    page = _page()
    assert page.best is not None
    assert page.found.settings == page.best.settings
    assert page.is_best
    assert page.against == ()
    assert page.moved.notes == ()


def test_the_best_is_what_the_others_are_held_against() -> None:
    page = _page(micro_batch_size=1, sharding="full_shard")
    assert not page.is_best
    changed, *rest = page.against
    assert changed.startswith("Changed: ")
    assert "than the best settings are predicted" in " ".join(rest)


def test_a_study_without_an_answer_shows_something_legal() -> None:
    page = page_of(PREDICTOR, None, {})
    assert page.found.settings in PREDICTOR.choices
    assert (page.best, page.best_path, page.against, page.is_best) == (None, "", (), False)


def test_its_address_leads_to_the_same_settings() -> None:
    page = _page(sharding="full_shard", tp_size=2, micro_batch_size=4)
    path, _, query = page.path.partition("?")
    assert path == f"/studies/{STUDY.id}/settings"
    assert _page(**dict(parse_qsl(query))).found.settings == page.found.settings


@given(st.fixed_dictionaries({k: st.sampled_from(v) for k, v in VALUES.items()}), st.booleans())
def test_whatever_is_chosen_leads_to_legal_settings(values: dict[str, Any], moved: bool) -> None:
    """What was moved is had, unless it is dead there; all else that gave way is said."""
    before = PREDICTOR.choices.legal[0]
    given_now = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in values.items()}
    if moved:
        given_now[BEFORE] = str(before)
    found = read_moved(PREDICTOR, None, given_now)
    assert found.settings in PREDICTOR.choices
    otherwise = [k for k in KNOBS if k != ACCUMULATION and getattr(found.settings, k) != values[k]]
    assert bool(found.notes) == bool(otherwise)


@pytest.mark.parametrize("knob", [k for k in VALUES if len(VALUES[k]) > 1 and k != ACCUMULATION])
def test_every_value_of_every_knob_can_be_had(knob: str) -> None:
    """From anywhere in one move, or after the move that makes the knob live."""
    for value in VALUES[knob]:
        reached = [
            read_moved(PREDICTOR, None, {knob: str(value).lower(), BEFORE: str(before)}).settings
            for before in PREDICTOR.choices.legal[:: max(1, len(PREDICTOR.choices.legal) // 20)]
        ]
        assert any(getattr(settings, knob) == value for settings in reached), (knob, value)


def test_what_gives_way_is_said_with_the_reason() -> None:
    before = Settings(sharding=Sharding.FULL_SHARD, tp_size=2, micro_batch_size=1,
                      gradient_accumulation_steps=16)  # fmt: skip
    page = _page(sharding="ddp", tp_size=2, micro_batch_size=1, **{BEFORE: before})
    assert page.found.settings.sharding is Sharding.DDP
    assert page.found.settings.tp_size != 2
    (note,) = page.moved.notes
    assert note.startswith("Moved along: tp_size to ")
    assert "DistributedDataParallel takes no DTensor parameters" in note
    assert note in page.in_short


def test_a_knob_that_is_dead_is_said_to_be() -> None:
    page = _page(tp_size=1, tp_recompute_allgather="true")
    assert page.found.settings.tp_recompute_allgather is False
    (note,) = page.moved.notes
    assert "with tp_size 1 there is no activation to gather again" in note


def test_a_slider_sends_the_number_of_its_value() -> None:
    page = _page()
    micro = _control(page, "micro_batch_size")
    assert micro.is_slider
    values = [option.value for option in micro.options]
    moved = _page(**{AT + "micro_batch_size": 2, BEFORE: page.key})
    assert moved.found.settings.micro_batch_size == values[2]
    assert _control(moved, "micro_batch_size").at == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"knob": "1"}, "knob"),
        ({"tp_size": "two"}, "tp_size"),
        ({"sharding": "zero9"}, "sharding"),
        ({AT + "tp_size": "99"}, AT + "tp_size"),
        ({AT + "tp_size": "-1"}, AT + "tp_size"),
        ({AT + "tp_size": "٣"}, AT + "tp_size"),
        ({AT + "nothing": "1"}, AT + "nothing"),
        ({"tp_size": "1", BEFORE: "nonsense"}, "settings"),
    ],
)
def test_what_cannot_be_chosen_is_refused(values: dict[str, str], field: str) -> None:
    with pytest.raises(UsageError) as error:
        page_of(PREDICTOR, SUGGESTION, values)
    assert error.value.field == field


def test_all_knobs_are_there_once() -> None:
    page = _page()
    live = [control.knob for control in page.controls]
    fixed = [one.knob for one in page.fixed]
    assert sorted([*live, *fixed, ACCUMULATION]) == sorted(KNOBS)
    assert all(one.why_one for one in page.fixed)
    assert page.state.keys() == set(live)


def test_the_script_is_told_what_each_value_does() -> None:
    page = _page(sharding="full_shard", tp_size=2)
    options = page.state["sharding"]["options"]
    assert [one["text"] for one in options][:1] == ["ddp"]
    assert "DTensor" in options[0]["why"]
    assert options[page.state["sharding"]["at"]]["text"] == "full shard"


def test_a_limit_too_small_is_said_to_be() -> None:
    study = predicted_study(memory_limit_bytes=2**20)
    page = page_of(Predictor(study), best_known(study), {"sharding": "ddp"})
    assert page.found.fits is False
    assert page.fit.startswith("Does not fit: ")
    assert page.why == ""


def test_what_fits_at_one_end_of_the_interval_only_is_not_sure() -> None:
    found = _page().found
    assert found.memory_gib.value is not None
    assert found.memory_gib.high is not None
    assert fit_words(found).startswith("Fits: ")
    between = (found.memory_gib.value + found.memory_gib.high) / 2
    if found.memory_gib.high > found.memory_gib.value:
        assert fit_words(replace(found, limit_gib=between)).startswith("Fits, but only just: ")
    assert fit_words(replace(found, fits=None)) == "Not known to fit"
    assert fit_words(replace(found, fits=False)) == "Does not run"
