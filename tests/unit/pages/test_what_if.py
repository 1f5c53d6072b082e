"""What-if: any settings can be chosen, what gives way is said, and the best stands beside it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.what_if import ACCUMULATION, AT, BEFORE, changes, page_of, read_moved
from tests.unit.api.studies import PREDICTED, TINY, WORKLOAD, finish, question_of
from tests.unit.pages.html import read_page, read_part
from tuner.core.configuration import KNOBS, Settings, Sharding
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, Study, StudyState
from tuner.errors import UsageError
from tuner.explain.known import best_known
from tuner.results.what_if import Predictor

JSON = {"Accept": "application/json"}
HOSTILE = '<img src=x onerror=a(1)>"{{ 7*7 }}'


def predicted_study(**limits):
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


def page_with(**values):
    return page_of(PREDICTOR, SUGGESTION, {k: str(v) for k, v in values.items()})


@given(st.fixed_dictionaries({k: st.sampled_from(v) for k, v in VALUES.items()}), st.booleans())
def test_whatever_is_chosen_leads_to_legal_settings(values, moved):
    """What was moved is had, unless it is inactive there; all else that gave way is said."""
    before = PREDICTOR.choices.legal[0]
    given_now = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in values.items()}
    if moved:
        given_now[BEFORE] = str(before)
    found = read_moved(PREDICTOR, None, given_now)
    assert found.settings in PREDICTOR.choices
    otherwise = [k for k in KNOBS if k != ACCUMULATION and getattr(found.settings, k) != values[k]]
    assert bool(found.notes) == bool(otherwise)


def test_what_gives_way_is_said_with_the_reason():
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
def test_what_cannot_be_chosen_is_refused(values, field):
    with pytest.raises(UsageError) as error:
        page_of(PREDICTOR, SUGGESTION, values)
    assert error.value.field == field


@pytest.fixture
def path(store):
    body = {**PREDICTED, "workload": {**WORKLOAD, "model_name": HOSTILE}}
    study = store.ask(question_of(body), Limits(fidelity=Fidelity.PREDICTED))
    finish(store, study.id)
    return f"/studies/{study.id}/settings"


def checked(page):
    radios = page.find("input", type="radio")
    found = {one["name"]: one["value"] for one in radios if "checked" in one.attributes}
    return found | {one["name"]: one["value"] for one in page.find("input", type="range")}


def test_the_form_without_a_script_moves_the_knobs(browser, page, path):
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


def test_a_script_gets_the_part_that_changes(browser, page, path):
    answer = browser.get(f"{path}?sharding=full_shard&micro_batch_size=2", headers=JSON)
    assert answer.headers["content-type"] == "application/json"
    assert "accept" in answer.headers["vary"].lower()
    found = json.loads(answer.text)
    assert "full_shard" in read_part(found["html"]).one("h2").text
    assert found["path"].startswith(f"{path}?sharding=full_shard&")
    assert found["from"].startswith("sharding=full_shard,")
    assert found["summary"] in found["said"]
    knobs = page(found["path"])
    names = {one["data-knob"] for one in knobs.all() if "data-knob" in one.attributes}
    assert set(found["controls"]) == names
    for knob in found["controls"].values():
        assert 0 <= knob["at"] < len(knob["options"])
