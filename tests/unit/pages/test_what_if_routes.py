"""``/studies/{id}/settings`` over HTTP."""

import json
from typing import Any

import pytest

from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, PREDICTED, WORKLOAD, finish, probe, question_of
from tests.unit.pages.html import Element, read_page, read_part
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import StudyState, Terms
from tuner.store import Store

JSON = {"Accept": "application/json"}
HOSTILE = '<img src=x onerror=a(1)>"{{ 7*7 }}'
BODY: dict[str, Any] = {**PREDICTED, "workload": {**WORKLOAD, "model_name": HOSTILE}}


@pytest.fixture
def path(store: Store) -> str:
    """The page of a study that was predicted."""
    study = store.ask(question_of(BODY), Terms(fidelity=Fidelity.PREDICTED))
    finish(store, study.id)
    return f"/studies/{study.id}/settings"


def _page(browser: Browser, path: str) -> Element:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return read_page(answer.text)


def _checked(page: Element) -> dict[str, str]:
    """What the knobs show."""
    radios = page.find("input", type="radio")
    found = {one["name"]: one["value"] for one in radios if "checked" in one.attributes}
    return found | {one["name"]: one["value"] for one in page.find("input", type="range")}


def test_the_knobs_of_the_study_are_there(browser: Browser, path: str) -> None:
    page = _page(browser, path)
    assert "sharding" in _checked(page)
    assert page.find("input", type="range", name="at.micro_batch_size")
    assert page.by_id("knobs")["method"] == "get"
    assert page.by_id("knobs")["action"] == path
    assert page.one(class_="chart-memory-bar" if page.find(class_="chart-memory-bar") else "chart")
    assert "predicted" in page.by_id("result").text
    assert "These very settings were not run." in page.by_id("result").text
    assert HOSTILE in page.one(class_="crumb").text


def test_the_form_without_a_script_moves_them(browser: Browser, path: str) -> None:
    page = _page(browser, path)
    shown = {**_checked(page), "from": page.one("input", name="from")["value"]}
    moved = browser.get(path, params={**shown, "sharding": "shard_grad_op"})
    result = read_page(moved.text)
    assert _checked(result)["sharding"] == "shard_grad_op"
    assert "Changed: " in result.by_id("result").text


def test_what_gives_way_is_said(browser: Browser, path: str) -> None:
    page = _page(browser, f"{path}?tp_size=1&tp_recompute_allgather=true")
    note = page.by_id("result").one(class_="notice")
    assert "no activation to gather again" in note.text


def test_a_script_gets_the_part_that_changes(browser: Browser, path: str) -> None:
    answer = browser.get(f"{path}?sharding=full_shard&micro_batch_size=2", headers=JSON)
    assert answer.headers["content-type"] == "application/json"
    assert "accept" in answer.headers["vary"].lower()
    found = json.loads(answer.text)
    part = read_part(found["html"])
    assert "full shard" in part.one("h2").text
    assert found["path"].startswith(f"{path}?sharding=full_shard&")
    assert found["from"].startswith("sharding=full_shard,")
    assert found["summary"] in found["said"]
    knobs = _page(browser, found["path"])
    names = {one["data-knob"] for one in knobs.all() if "data-knob" in one.attributes}
    assert set(found["controls"]) == names
    for knob in found["controls"].values():
        assert 0 <= knob["at"] < len(knob["options"])


def test_what_was_measured_stands_beside(browser: Browser, store: Store) -> None:
    study = store.ask(question_of(MEASURED), Terms())
    done = probe(store, study.id)
    settings = done.probes[0].request.settings
    query = "&".join(f"{k}={str(v).lower()}" for k, v in settings.as_dict().items())
    result = _page(browser, f"/studies/{study.id}/settings?{query}").by_id("result")
    assert "286 MiB allocated" in result.text
    link = result.one("a", class_="probe-link")
    assert link["href"] == f"/studies/{study.id}/probes/{done.probes[0].id}"


def test_a_probe_that_failed_is_told_with_its_detail(browser: Browser, store: Store) -> None:
    study = store.ask(question_of(MEASURED), Terms())
    refused = Measurement(outcome=Outcome.INVALID, detail="<b>segfault</b>", wall_s=1.0)
    done = probe(store, study.id, refused)
    settings = done.probes[0].request.settings
    query = "&".join(f"{k}={str(v).lower()}" for k, v in settings.as_dict().items())
    result = _page(browser, f"/studies/{study.id}/settings?{query}").by_id("result")
    assert "<b>segfault</b>" in result.text


@pytest.mark.parametrize("state", [StudyState.CANCELLED, StudyState.RUNNING])
def test_a_study_without_an_answer_can_be_looked_into(
    browser: Browser, store: Store, state: StudyState
) -> None:
    study = store.ask(question_of({**MEASURED, "cluster": "2xcpu"}), Terms())
    store.move(study.id, state)
    page = _page(browser, f"/studies/{study.id}/settings")
    assert _checked(page)


def test_a_space_of_one_has_nothing_to_move(browser: Browser, store: Store) -> None:
    body = {
        "workload": {**WORKLOAD, "global_batch_size": 1},
        "cluster": "1xa100-80gb",
        "knobs": {"activation_checkpointing": ["none"]},
    }
    study = store.ask(question_of(body), Terms(fidelity=Fidelity.PREDICTED))
    page = _page(browser, f"/studies/{study.id}/settings")
    assert "only legal settings" in page.text
    assert not page.find("input", type="range")


@pytest.mark.parametrize(
    "query", ["tp_size=x", "nothing=1", "at.tp_size=99", "from=%3Cb%3E&tp_size=1"]
)
def test_what_cannot_be_is_told(browser: Browser, path: str, query: str) -> None:
    answer = browser.get(f"{path}?{query}")
    assert answer.status_code == 422
    assert "text/html" in answer.headers["content-type"]
    problem = browser.get(f"{path}?{query}", headers=JSON)
    assert problem.headers["content-type"] == "application/problem+json"


def test_a_study_that_there_is_not(browser: Browser) -> None:
    assert browser.get("/studies/st-000000000000/settings").status_code == 404
    assert browser.get("/studies/%3Cb%3E/settings").status_code == 404


def test_predictions_follow_what_happens(browser: Browser, store: Store) -> None:
    """A study is read again after something happened to it."""
    study = store.ask(question_of(MEASURED), Terms())
    path = f"/studies/{study.id}/settings"
    first = _page(browser, path)
    done = probe(store, study.id)
    query = "&".join(
        f"{k}={str(v).lower()}" for k, v in done.probes[0].request.settings.as_dict().items()
    )
    assert "tokens/s per rank" in first.text
    assert "286 MiB allocated" in _page(browser, f"{path}?{query}").by_id("result").text
