"""``/`` and ``/new`` over HTTP: what is shown, and what becomes of a form."""

import json
from typing import Any

import pytest
from fastapi import FastAPI

from api.app import create_app
from api.pages import listing
from api.pages.form_fields import CONFIG, FRAMEWORK, GPU, GPUS_PER_NODE, MODEL, MODEL_NAME, NODES
from api.settings import Settings
from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, TINY, WORKLOAD, finish, probe, question_of
from tests.unit.pages.html import Element, read_page
from tuner.core.study import Study, StudyState, Terms
from tuner.store import Store
from tuner.store.access import Action, Keys
from tuner.store.audit import Audit
from tuner.store.tables import Scope

QUESTION = {
    MODEL: "",
    CONFIG: json.dumps(TINY),
    MODEL_NAME: "our model",
    GPU: "cpu",
    NODES: "1",
    GPUS_PER_NODE: "2",
    "workload.sequence_length": "32",
    "workload.global_batch_size": "16",
    FRAMEWORK: "accelerate",
    "fidelity": "measured",
    "budget.max_probes": "4",
}
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "\" onmouseover='alert(3)' x=\"",
    "m" * 200,
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET} \N{ARABIC LETTER BEH} model",
    "\N{LLAMA}\N{FIRE} 7b",
    "{{ 7 * 7 }} {% for x in y %} &amp; &lt;b&gt;",
    "</title></textarea><!--",
)


@pytest.fixture
def browser(app: FastAPI) -> Browser:
    """A person on this machine."""
    return Browser(app, address="127.0.0.1")


def _ask(store: Store, number: int = 0, model: str = "m") -> Study:
    workload = {**WORKLOAD, "model_name": model, "global_batch_size": 16 + 2 * number}
    return store.ask(question_of({**MEASURED, "workload": workload}), Terms())


def _page(browser: Browser, path: str, status: int = 200) -> Element:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    return read_page(answer.text)


# -- the list ---------------------------------------------------------------------------------


def test_an_empty_list_invites(browser: Browser) -> None:
    page = _page(browser, "/")
    starts = [a["href"] for a in page.one(class_="welcome").find("a")]
    assert starts[0] == "/new"
    assert len(starts) == 1 + len(listing.STARTS)
    for start in starts:
        _page(browser, start)
    assert not page.find("form", role="search")


def test_a_study_is_one_line_with_its_answer(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "BUDGET_S", 60.0)  # its answer is computed for the list
    study = _ask(store, model="our model")
    probe(store, study.id)
    finish(store, study.id)
    line = _page(browser, "/").by_id(study.id)
    assert line.one("h2").one("a")["href"] == f"/studies/{study.id}"
    for words in ("our model", "cpu:2", "done", "micro-batch", "measured", "tokens/s per rank",
                  "286 MiB", "1 probe"):  # fmt: skip
        assert words in line.text, words
    assert line.find("svg", class_="share")
    assert "data-moving" not in line.attributes


def test_open_studies_are_looked_up_again(browser: Browser, store: Store) -> None:
    study = _ask(store)
    page = _page(browser, "/")
    assert "data-moving" in page.by_id(study.id).attributes
    assert page.by_id("made-at")["datetime"].endswith("+00:00")


@pytest.mark.parametrize("state", [StudyState.CANCELLED, StudyState.FAILED, StudyState.DONE])
def test_studies_without_an_answer_say_so(
    browser: Browser, store: Store, state: StudyState
) -> None:
    study = _ask(store)
    store.move(study.id, StudyState.RUNNING)
    store.move(study.id, state, "for <b>no</b> good reason")
    line = _page(browser, "/").by_id(study.id)
    assert str(state) in line.text
    assert line.one(class_="study-answer").text.strip()
    assert not line.find("b")


def test_hostile_names_are_text(browser: Browser, store: Store) -> None:
    studies = {name: _ask(store, n, name) for n, name in enumerate(HOSTILE)}
    page = _page(browser, "/")
    assert not [one for one in page.find("script") if "alert" in one.get("src")]
    offered = {option["value"] for option in page.by_id("find-models").find("option")}
    assert offered == set(HOSTILE)
    for name, study in studies.items():
        shown = page.by_id(study.id).one("h2").one("bdi")
        assert shown.get("title", shown.text) == name
        assert shown.text.rstrip("…") in name
        again = _page(browser, f"/new?like={study.id}")
        assert again.by_id("f-workload-model-name")["value"] == name


def test_search_filters_and_pages_are_in_the_address(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ON_A_PAGE", 2)
    for number in range(5):
        _ask(store, number, model="<b>llama</b>" if number % 2 else "qwen")
    first = _page(browser, "/?query=cpu&state=queued")
    assert first.by_id("find-query")["value"] == "cpu"
    (chosen,) = [
        one for one in first.by_id("find-state").find("option") if "selected" in one.attributes
    ]
    assert chosen["value"] == "queued"
    assert len(first.find("li", class_="study")) == 2
    (older,) = first.find("a", rel="next")
    second = _page(browser, older["href"])
    assert len(second.find("li", class_="study")) == 2
    assert second.by_id("find-query")["value"] == "cpu"
    last = _page(browser, second.one("a", rel="next")["href"])
    assert len(last.find("li", class_="study")) == 1
    assert not last.find("a", rel="next")
    assert last.one(class_="pager").one("a")["href"] == "/?query=cpu&state=queued"
    models = _page(browser, "/?model=%3Cb%3Ellama%3C%2Fb%3E")
    assert {one.one("h2").text for one in models.find("li", class_="study")} == {"<b>llama</b>"}


def test_nothing_found_is_said_with_a_way_back(browser: Browser, store: Store) -> None:
    _ask(store)
    page = _page(browser, "/?query=%3Ci%3Enothing%3C%2Fi%3E&state=done&model=x")
    found = page.one(class_="welcome")
    assert "<i>nothing</i>" in found.text
    assert found.one("a")["href"] == "/"


@pytest.mark.parametrize("query", ["state=asleep", "cursor=x", "query=" + "x" * 201])
def test_an_address_that_cannot_be_is_told(browser: Browser, query: str) -> None:
    answer = browser.get(f"/?{query}")
    assert answer.status_code == 422
    assert "text/html" in answer.headers["content-type"]


def test_those_who_may_only_look_see_no_form(store: Store, settings: Settings) -> None:
    _, key = Keys(store.transactions).create("a reader", Scope.READ)
    app = create_app(store, settings.model_copy(update={"require_keys": True}))
    browser = Browser(app)
    browser.sign_in(key)
    page = _page(browser, "/")
    assert "/new" not in [a["href"] for a in page.one("main").find("a")]
    assert browser.get("/new").status_code == 403


# -- the form ---------------------------------------------------------------------------------


def test_the_form_begins_empty(browser: Browser) -> None:
    page = _page(browser, "/new")
    assert page.by_id("f-workload-model")["value"] == ""
    assert page.by_id("f-cluster-gpus-per-node")["value"] == "8"
    offers = page.by_id("f-workload-model-offers").find("option")
    assert "llama-3.1-8b" in [one["value"] for one in offers]
    assert not page.find(id="errors")
    assert page.by_id("question")["method"] == "post"


def test_what_was_decided_is_told_once(browser: Browser) -> None:
    answer = browser.submit("/new", QUESTION, page="/new")
    assert answer.status_code == 303, answer.text
    study_page = answer.headers["location"]
    (told,) = _page(browser, study_page).find("ul", id="told")
    assert "versions that are not stated" in told.text.lower()
    assert not _page(browser, study_page).find("ul", id="told")


def test_a_form_starts_a_study(browser: Browser, store: Store) -> None:
    answer = browser.submit("/new", QUESTION, page="/new")
    assert answer.status_code == 303, answer.text
    (study,) = store.studies(2)
    assert answer.headers["location"] == f"/studies/{study.id}"
    assert study.model_name == "our model"
    assert store.study(study.id).question.as_dict() == (
        question_of({**MEASURED, "workload": {**WORKLOAD, "model_name": "our model"}}).as_dict()
    )
    assert store.study(study.id).terms.max_probes == 4


def test_who_asked_is_noted(browser: Browser, store: Store) -> None:
    browser.submit("/new", QUESTION, page="/new")
    (note,) = Audit(store.transactions).newest(10)
    assert note.action == Action.SUBMIT


def test_the_same_form_again_joins_the_study(browser: Browser, store: Store) -> None:
    first, second = (browser.submit("/new", QUESTION, page="/new") for _ in range(2))
    assert first.headers["location"] == second.headers["location"]
    assert len(store.studies(5)) == 1


def test_errors_stand_beside_their_fields(browser: Browser, store: Store) -> None:
    wrong = {
        **QUESTION,
        "workload.sequence_length": "<b>long</b>",
        CONFIG: '{"model_type": "llama", "hidden_size": "</textarea><script>"}',
        "headroom": "2",
        "knobs.tp_size": "1, x",
        "knobs.sharding": ["ddp", "zero9"],
    }
    answer = browser.submit("/new", wrong, page="/new")
    assert answer.status_code == 422
    page = read_page(answer.text)
    assert len(store.studies(5)) == 0
    links = [a["href"].removeprefix("#") for a in page.by_id("errors").find("a")]
    assert links == [
        "f-config",
        "f-workload-sequence-length",
        "f-knobs-sharding",
        "f-knobs-tp-size",
        "f-headroom",
    ]
    for link in links:
        field = page.by_id(link)
        assert field["aria-invalid"] == "true"
        assert f"{link}-error" in field["aria-describedby"].split()
        assert page.by_id(f"{link}-error").text.strip().startswith("Error: ")
    assert page.by_id("f-workload-sequence-length")["value"] == "<b>long</b>"
    assert page.by_id("f-config").text == wrong[CONFIG]
    assert page.by_id("f-workload-model-name")["value"] == "our model"
    ticked = [
        one["value"] for one in page.find("input", type="checkbox") if "checked" in one.attributes
    ]
    assert ticked == ["ddp"]
    assert all("open" in one.attributes for one in page.find("details"))


def test_what_only_the_planner_finds_wrong_stands_there_too(browser: Browser) -> None:
    odd = {**QUESTION, "workload.global_batch_size": "15"}
    page = read_page(browser.submit("/new", odd, page="/new").text)
    (link,) = page.by_id("errors").find("a")
    assert link["href"] == "#f-workload-global-batch-size"
    assert "must be a multiple of" in page.by_id("f-workload-global-batch-size-error").text.lower()


@pytest.mark.parametrize(
    ("knob", "value"), [("knobs.tp_size", "3"), ("knobs.sharding", "hybrid_shard")]
)
def test_so_do_knobs_that_cannot_be_had(browser: Browser, knob: str, value: str) -> None:
    page = read_page(browser.submit("/new", {**QUESTION, knob: value}, page="/new").text)
    (link,) = page.by_id("errors").find("a")
    assert link["href"] == f"#f-{knob.replace('.', '-').replace('_', '-')}"


def test_too_many_open_studies_are_told_and_the_form_is_kept(
    store: Store, settings: Settings
) -> None:
    _ask(store, 3)
    app = create_app(store, settings.model_copy(update={"max_open_studies": 1}))
    browser = Browser(app, address="127.0.0.1")
    answer = browser.submit("/new", QUESTION, page="/new")
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    page = read_page(answer.text)
    assert "1 studies are open" in page.by_id("errors").text
    assert page.by_id("f-workload-sequence-length")["value"] == "32"


def test_forms_of_others_are_refused(browser: Browser, store: Store) -> None:
    assert browser.post("/new", data=QUESTION).status_code == 403
    forged = browser.submit("/new", {**QUESTION, "csrf_token": "0" * 64}, page="/new")
    assert forged.status_code == 403
    elsewhere = browser.submit("/new", QUESTION, page="/new", sec_fetch_site="cross-site")
    assert elsewhere.status_code == 403
    assert store.studies(5) == []


def test_a_form_can_be_filled_in_by_an_address(browser: Browser) -> None:
    page = _page(browser, "/new?workload.model=gpt2&cluster.gpu=%22%3E%3Cscript%3E&evil=1")
    assert page.by_id("f-workload-model")["value"] == "gpt2"
    assert page.by_id("f-cluster-gpu")["value"] == '"><script>'
    assert page.by_id("f-cluster-nodes")["value"] == "1"


def test_a_form_can_be_filled_in_like_a_study(browser: Browser, store: Store) -> None:
    study = _ask(store, model="our model")
    page = _page(browser, f"/new?like={study.id}")
    assert json.loads(page.by_id("f-config").text)["hidden_size"] == TINY["hidden_size"]
    assert page.by_id("f-workload-global-batch-size")["value"] == "16"
    assert page.by_id("f-cluster-gpu")["value"] == "cpu"


@pytest.mark.parametrize(("like", "status"), [("st-000000000000", 404), ("%3Cb%3E", 422)])
def test_like_nothing(browser: Browser, like: str, status: int) -> None:
    assert browser.get(f"/new?like={like}").status_code == status


@pytest.mark.parametrize("path", ["/", "/new"])
def test_they_are_for_people_and_not_in_the_document(browser: Browser, path: str) -> None:
    document: dict[str, Any] = browser.get("/openapi.json").json()
    assert path not in document["paths"]
    assert browser.head(path).status_code == 200
    policy = browser.get(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
