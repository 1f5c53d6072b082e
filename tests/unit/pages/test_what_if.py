"""What-if: any settings can be chosen, what gives way is said, and the best stands beside it."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.what_if import (
    ACCUMULATION,
    AT,
    BEFORE,
    KnobControl,
    WhatIfPage,
    against_best,
    changes,
    fit_words,
    page_of,
    read_moved,
)
from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, PREDICTED, TINY, WORKLOAD, finish, probe, question_of
from tests.unit.pages.conftest import ShowPage
from tests.unit.pages.html import Element, read_page, read_part
from tuner.core.configuration import KNOBS, Settings, Sharding
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import Limits, Study, StudyState
from tuner.errors import UsageError
from tuner.explain.known import best_known
from tuner.results import Predictor, WhatIf
from tuner.store import Store

JSON = {"Accept": "application/json"}
HOSTILE = '<img src=x onerror=a(1)>"{{ 7*7 }}'


def predicted_study(**limits: Any) -> Study:
    """A study whose settings are predicted without any dry run."""
    body = {
        "workload": {"model": TINY, "sequence_length": 32, "global_batch_size": 64},
        "cluster": "8xa100-80gb",
        "framework": "torch",
    }
    return Study(
        id="st-0123456789ab",
        question=question_of(body),
        limits=Limits(fidelity=Fidelity.PREDICTED, **limits),
        state=StudyState.DONE,
    )


STUDY = predicted_study()
PREDICTOR = Predictor(STUDY)
SUGGESTION = best_known(STUDY)
VALUES = {choice.knob: choice.values for choice in PREDICTOR.choices.knobs}


def page_with(**values: Any) -> WhatIfPage:
    return page_of(PREDICTOR, SUGGESTION, {k: str(v) for k, v in values.items()})


def control(page: WhatIfPage, knob: str) -> KnobControl:
    (found,) = (one for one in page.controls if one.knob == knob)
    return found


def test_the_best_is_shown_first_and_what_others_are_held_against() -> None:
    first = page_with()
    assert first.best is not None
    assert first.found.settings == first.best.settings
    assert (first.is_best, first.against, first.moved.notes) == (True, (), ())
    other = page_with(micro_batch_size=1, sharding="full_shard")
    assert not other.is_best
    assert len(other.against) > 1
    without = page_of(PREDICTOR, None, {})
    assert without.found.settings in PREDICTOR.choices
    assert (without.best, without.best_path, without.against) == (None, "", ())


def test_its_address_leads_to_the_same_settings() -> None:
    page = page_with(sharding="full_shard", tp_size=2, micro_batch_size=4)
    path, _, query = page.path.partition("?")
    assert path == f"/studies/{STUDY.id}/settings"
    assert page_with(**dict(parse_qsl(query))).found.settings == page.found.settings


@given(st.fixed_dictionaries({k: st.sampled_from(v) for k, v in VALUES.items()}), st.booleans())
def test_whatever_is_chosen_leads_to_legal_settings(values: dict[str, Any], moved: bool) -> None:
    """What was moved is had, unless it is inactive there; all else that gave way is said."""
    before = PREDICTOR.choices.legal[0]
    given_now = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in values.items()}
    if moved:
        given_now[BEFORE] = str(before)
    found = read_moved(PREDICTOR, None, given_now)
    assert found.settings in PREDICTOR.choices
    otherwise = [k for k in KNOBS if k != ACCUMULATION and getattr(found.settings, k) != values[k]]
    assert bool(found.notes) == bool(otherwise)


def test_every_value_of_every_knob_can_be_had() -> None:
    """From somewhere in one move, or after the move that makes the knob act."""
    starts = PREDICTOR.choices.legal[:: max(1, len(PREDICTOR.choices.legal) // 8)]
    for knob, values in VALUES.items():
        for value in values if len(values) > 1 and knob != ACCUMULATION else ():
            moves = ({knob: str(value).lower(), BEFORE: str(before)} for before in starts)
            found = (read_moved(PREDICTOR, None, move).settings for move in moves)
            assert any(getattr(settings, knob) == value for settings in found), (knob, value)


def test_what_gives_way_is_said_with_the_reason() -> None:
    before = Settings(sharding=Sharding.FULL_SHARD, tp_size=2, micro_batch_size=1,
                      gradient_accumulation_steps=16)  # fmt: skip
    page = page_with(sharding="ddp", tp_size=2, micro_batch_size=1, **{BEFORE: before})
    assert page.found.settings.sharding is Sharding.DDP
    assert page.found.settings.tp_size != 2
    (note,) = page.moved.notes
    assert "tp_size" in note
    assert note in changes(page)["said"]
    inactive = page_with(tp_size=1, tp_recompute_allgather="true")
    assert inactive.found.settings.tp_recompute_allgather is False
    (note,) = inactive.moved.notes
    assert "tp_size 1" in note


def test_a_slider_sends_the_number_of_its_value() -> None:
    page = page_with()
    micro = control(page, "micro_batch_size")
    assert micro.is_slider
    values = [option.value for option in micro.options]
    moved = page_with(**{AT + "micro_batch_size": 2, BEFORE: page.found.settings})
    assert moved.found.settings.micro_batch_size == values[2]
    assert control(moved, "micro_batch_size").at == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"knob": "1"}, "knob"),
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


def test_all_knobs_are_there_once_and_the_script_is_told_what_each_value_does() -> None:
    page = page_with(sharding="full_shard", tp_size=2)
    live = [control.knob for control in page.controls]
    assert sorted([*live, *(one.knob for one in page.fixed), ACCUMULATION]) == sorted(KNOBS)
    told = changes(page)["controls"]
    assert told.keys() == set(live)
    options = told["sharding"]["options"]
    assert options[0]["text"] == "ddp"
    assert "DTensor" in options[0]["why"]
    assert options[told["sharding"]["at"]]["text"] == "full shard"


def test_how_it_fits() -> None:
    study = predicted_study(memory_limit_bytes=2**20)
    small = page_of(Predictor(study), best_known(study), {"sharding": "ddp"})
    assert (small.found.fits, small.why) == (False, "")
    assert small.fit.startswith("Does not fit: ")
    found = page_with().found
    memory = replace(found.memory_gib, value=1.0, low=0.9, high=1.2)
    for changed, words in (
        ({}, "Fits: "),
        ({"memory_gib": memory, "limit_gib": 1.1}, "Fits, but only just: "),
        ({"fits": None}, "Not known to fit"),
        ({"fits": False}, "Does not run"),
    ):
        assert fit_words(replace(found, **changed)).startswith(words)  # type: ignore[arg-type]


def test_differences_from_the_best_and_whether_they_mean_anything() -> None:
    best, other = (PREDICTOR.what_if(settings) for settings in PREDICTOR.choices.legal[:2])

    def with_(found: WhatIf, speed: float, off: float, memory_gib: float) -> WhatIf:
        ends = {"low": speed - off, "high": speed + off, "provenance": Provenance.PREDICTED}
        memory = Quantity(value=memory_gib, low=0.0, high=9.0, provenance=Provenance.PREDICTED)
        rate = Quantity(value=speed, **ends)  # type: ignore[arg-type]
        return replace(found, tokens_per_s_per_gpu=rate, memory_gib=memory)

    for speed, off, memory_gib, faster, more in (
        (110.0, 0.0, 2.0, "10% faster than", "1.00 GiB more memory than"),
        (96.0, 0.0, 0.5, "4.0% slower than", "512 MiB less memory than"),
        (100.0, 0.0, 1.0, "No faster and no slower than", "As much memory as"),
        (110.0, 20.0, 1.0, "10% faster than", "As much memory as"),
        (150.0, 20.0, 1.0, "50% faster than", "As much memory as"),
    ):
        beside = with_(best, 100.0, off, 1.0)
        _, rate, memory = against_best(with_(other, speed, off, memory_gib), beside, "GPU")
        assert rate.startswith(faster)
        assert memory.startswith(more)
        assert ("off by" in rate) == (off > 0 and speed == 110.0)
    unknown = replace(other, tokens_per_s_per_gpu=UNKNOWN, memory_gib=UNKNOWN)
    assert len(list(against_best(unknown, best, "GPU"))) == 1


# -- over HTTP --------------------------------------------------------------------------------


@pytest.fixture
def path(store: Store) -> str:
    """The page of a study that was predicted."""
    body = {**PREDICTED, "workload": {**WORKLOAD, "model_name": HOSTILE}}
    study = store.ask(question_of(body), Limits(fidelity=Fidelity.PREDICTED))
    finish(store, study.id)
    return f"/studies/{study.id}/settings"


def checked(page: Element) -> dict[str, str]:
    """What the knobs show."""
    radios = page.find("input", type="radio")
    found = {one["name"]: one["value"] for one in radios if "checked" in one.attributes}
    return found | {one["name"]: one["value"] for one in page.find("input", type="range")}


def query_of(settings: Settings) -> str:
    return urlencode({k: str(v).lower() for k, v in settings.as_dict().items()})


def test_the_form_without_a_script_moves_the_knobs(
    browser: Browser, page: ShowPage, path: str
) -> None:
    first = page(path)
    assert (first.by_id("knobs")["method"], first.by_id("knobs")["action"]) == ("get", path)
    assert first.find("input", type="range", name="at.micro_batch_size")
    assert HOSTILE in first.one(class_="crumb").text
    shown = {**checked(first), "from": first.one("input", name="from")["value"]}
    moved = browser.get(path, params={**shown, "sharding": "shard_grad_op"})
    assert checked(read_page(moved.text))["sharding"] == "shard_grad_op"
    note = (
        page(f"{path}?tp_size=1&tp_recompute_allgather=true").by_id("result").one(class_="notice")
    )
    assert note.text.strip()


def test_a_script_gets_the_part_that_changes(browser: Browser, page: ShowPage, path: str) -> None:
    answer = browser.get(f"{path}?sharding=full_shard&micro_batch_size=2", headers=JSON)
    assert answer.headers["content-type"] == "application/json"
    assert "accept" in answer.headers["vary"].lower()
    found = json.loads(answer.text)
    assert "full shard" in read_part(found["html"]).one("h2").text
    assert found["path"].startswith(f"{path}?sharding=full_shard&")
    assert found["from"].startswith("sharding=full_shard,")
    assert found["summary"] in found["said"]
    knobs = page(found["path"])
    names = {one["data-knob"] for one in knobs.all() if "data-knob" in one.attributes}
    assert set(found["controls"]) == names
    for knob in found["controls"].values():
        assert 0 <= knob["at"] < len(knob["options"])


def test_what_was_run_stands_beside(page: ShowPage, store: Store) -> None:
    """A study is read again after something happened to it; what failed is told as text."""
    study = store.ask(question_of(MEASURED), Limits())
    path = f"/studies/{study.id}/settings"
    assert checked(page(path)), "before there is an answer"
    done = probe(store, study.id)
    result = page(f"{path}?{query_of(done.probes[0].request.settings)}").by_id("result")
    assert "286 MiB allocated" in result.text
    link = result.one("a", class_="probe-link")
    assert link["href"] == f"/studies/{study.id}/probes/{done.probes[0].id}"
    refused = Measurement(outcome=Outcome.INVALID, detail="<b>segfault</b>", wall_s=1.0)
    done = probe(store, study.id, refused)
    result = page(f"{path}?{query_of(done.probes[1].request.settings)}").by_id("result")
    assert "<b>segfault</b>" in result.text


def test_what_cannot_be_is_told(browser: Browser, page: ShowPage, path: str) -> None:
    page(f"{path}?from=%3Cb%3E&tp_size=1", 422)
    problem = browser.get(f"{path}?tp_size=x", headers=JSON)
    assert problem.headers["content-type"] == "application/problem+json"
    page("/studies/st-000000000000/settings", 404)
    page("/studies/%3Cb%3E/settings", 404)
