"""``/studies/{id}`` over HTTP: the page, its parts, evidence, and cancelling."""

import json
import threading
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, finish, probe, question_of
from tests.unit.pages.html import Element, read_page, read_part
from tests.unit.pages.made import GIB, crashed, ok, oom, question, stored, study
from tuner.core.study import StudyState, Terms
from tuner.store import Store
from tuner.store.access import Action, Keys
from tuner.store.audit import Audit
from tuner.store.tables import Scope

FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed()]


@pytest.fixture
def done(store: Store) -> str:
    """A study that was answered."""
    return stored(store, study(question(tp_size=[1]), FOUND))


@pytest.fixture
def running(store: Store) -> str:
    """A study that runs, with one probe measured."""
    asked = store.ask(question_of(MEASURED), Terms(max_probes=4))
    probe(store, asked.id)
    return asked.id


def page(browser: Browser, path: str, status: int = 200) -> Element:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    return read_page(answer.text)


def words(element: Element) -> str:
    return " ".join(element.text.split())


# -- the page ---------------------------------------------------------------------------------


def test_a_study_that_was_answered(browser: Browser, done: str) -> None:
    found = page(browser, f"/studies/{done}")
    assert words(found.one("h1")) == "tiny on 8xa100-80gb"
    assert found.by_id("answer-title").text == "Run this"
    scripts = {Path(one["src"]).name for one in found.find("script")}
    assert scripts == {"start.js", "copy.js", "study.js"}
    assert not found.find("noscript")
    assert not found.find("form")
    assert found.find("a", href=f"/compare?ids={done}")
    assert found.find("a", href=f"/studies/{done}/settings")
    assert found.find("a", href=f"/new?like={done}")


def test_a_study_that_runs_moves_and_can_be_cancelled(browser: Browser, running: str) -> None:
    found = page(browser, f"/studies/{running}")
    root = found.by_id("study")
    assert root["data-live"].startswith(f"/studies/{running}/live?sort=-speed&outcome=&after=")
    assert found.by_id("said")["role"] == "status"
    assert found.one("form")["action"] == f"/studies/{running}/cancel"
    assert f"/studies/{running}?refresh=10" in {link["href"] for link in found.find("a")}
    assert not found.find("meta", http_equiv="refresh")


def test_without_scripts_one_may_have_it_loaded_again(browser: Browser, running: str) -> None:
    found = page(browser, f"/studies/{running}?refresh=10")
    (again,) = found.find("meta", http_equiv="refresh")
    assert again["content"] == "10"
    assert browser.get(f"/studies/{running}?refresh=1").status_code == 422


def test_an_answered_study_is_not_loaded_again(browser: Browser, done: str) -> None:
    assert not page(browser, f"/studies/{done}?refresh=10").find("meta", http_equiv="refresh")


def test_probes_are_sorted_and_chosen_without_scripts(browser: Browser, done: str) -> None:
    def shown(query: str) -> list[str]:
        rows = page(browser, f"/studies/{done}{query}").by_id("probes-table").one("tbody")
        return [row.one("a").text for row in rows.find("tr")]

    assert shown("") == ["#3", "#1", "#2", "#4"]
    assert shown("?sort=id") == ["#1", "#2", "#3", "#4"]
    assert shown("?sort=-memory&outcome=ok") == ["#3", "#1"]
    assert shown("?outcome=oom") == ["#2"]
    found = page(browser, f"/studies/{done}?sort=price", 422)
    assert "must be one of" in words(found)


@pytest.mark.parametrize("path", ["/studies/st-ffffffffffff", "/studies/st-ffffffffffff/probes/1"])
def test_a_study_that_there_is_not(browser: Browser, path: str) -> None:
    assert "here is no study st-ffffffffffff" in words(page(browser, path, 404))


def test_a_study_whose_name_is_hostile(browser: Browser, store: Store) -> None:
    name = "</title><script>alert(1)</script>" + "x" * 160
    study_id = stored(store, study(question(name=name), FOUND[:1]))
    found = page(browser, f"/studies/{study_id}")
    (shown, _) = found.one("h1").find("bdi")
    assert shown["title"] == name
    assert shown.text == name[:80] + "…"


# -- as it changes ------------------------------------------------------------------------------


def test_changes_come_as_events(store: Store, settings: Settings, running: str) -> None:
    with (
        serving(create_app(store, settings)) as url,
        httpx.stream("GET", f"{url}/studies/{running}/live", timeout=60) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        cancelling = threading.Timer(0.2, store.move, (running, StudyState.CANCELLED, "enough"))
        cancelling.start()
        lines = list(answer.iter_lines())  # the stream ends with the study
    changes = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert [one["is_open"] for one in changes][-2:] == [True, False]
    assert "csrf" not in str(changes), "parts are the same for all who look"
    shown = read_page(Browser(create_app(store, settings)).get(f"/studies/{running}").text)
    for name, part in changes[-1]["parts"].items():
        (there,) = shown.find(data_part=name)
        assert words(there) == words(read_part(part))


@pytest.mark.parametrize("query", ["?after=x", "?after=-1", "?sort=" + "x" * 65])
def test_a_stream_that_cannot_be_is_refused(browser: Browser, running: str, query: str) -> None:
    assert browser.get(f"/studies/{running}/live{query}").status_code == 422


# -- evidence ---------------------------------------------------------------------------------


def test_the_evidence_of_a_probe(browser: Browser, done: str) -> None:
    found = page(browser, f"/studies/{done}/probes/2")
    assert words(found.one("h1")) == "Probe #2: out of memory"
    text = words(found)
    for expected in ("backward, on rank 3", "80,530,636,800 bytes", "CUDA out of memory"):
        assert expected in text
    links = {link["href"] for link in found.find("a")}
    assert {f"/studies/{done}/probes/1", f"/studies/{done}/probes/3"} <= links
    assert any(link.startswith(f"/studies/{done}/settings?sharding=") for link in links)
    well = page(browser, f"/studies/{done}/probes/1")
    assert "all gather" in words(well)
    assert well.find("svg")


def test_the_study_leads_to_it_in_short(browser: Browser, done: str) -> None:
    short = browser.get(f"/studies/{done}?probe=2")
    assert words(read_page(short.text).one("h1")) == "Probe #2: out of memory"


def test_a_probe_of_another_study_is_not_shown(browser: Browser, done: str, running: str) -> None:
    found = page(browser, f"/studies/{running}/probes/1", 404)
    assert f"tudy {running} has no probe 1" in words(found)
    assert browser.get(f"/studies/{done}/probes/0").status_code == 422


# -- cancelling -------------------------------------------------------------------------------


def test_a_study_is_cancelled_from_its_page(browser: Browser, store: Store, running: str) -> None:
    path = f"/studies/{running}"
    answer = browser.submit(f"{path}/cancel", page=path)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert store.study(running).state is StudyState.CANCELLED
    assert Audit(store.transactions).newest(1)[0].action == Action.CANCEL
    found = page(browser, path)
    assert "cancelled" in words(found.one(class_="status"))
    assert not found.find("form")


def test_one_that_has_ended_cannot_be(browser: Browser, store: Store, running: str) -> None:
    path = f"/studies/{running}"
    token = browser.token(path)
    finish(store, running)
    answer = browser.post(f"{path}/cancel", data={"csrf_token": token})
    assert answer.status_code == 409
    assert "is done already" in words(read_page(answer.text))


def test_no_other_site_can_cancel(browser: Browser, store: Store, running: str) -> None:
    path = f"/studies/{running}/cancel"
    assert browser.post(path).status_code in (403, 415)
    assert browser.post(path, data={"csrf_token": "0" * 64}).status_code == 403
    assert store.study(running).state is StudyState.RUNNING


def test_a_key_that_only_reads_cannot_cancel(store: Store, running: str) -> None:
    keys = Keys(store.transactions)
    _, key = keys.create("reader", Scope.READ)
    app = create_app(store, Settings(_env_file=None, require_keys=True))
    reader = Browser(app)
    reader.sign_in(key)
    found = page(reader, f"/studies/{running}")
    assert not [form for form in found.find("form") if form["action"].endswith("/cancel")]
    answer = reader.submit(f"/studies/{running}/cancel", page=f"/studies/{running}")
    assert answer.status_code == 403
    assert store.study(running).state is StudyState.RUNNING
