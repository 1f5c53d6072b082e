"""``/studies/{id}`` over HTTP: the page, its parts, evidence, and cancelling."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from tests.unit.api.studies import MEASURED, claimed, probe, question_of
from tests.unit.pages.made import GIB, crashed, ok, oom, question, stored, study
from tuner.core.study import Limits, StudyState
from tuner.store.access import Action, Audit
from tuner.store.tables import AttemptRow

FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed()]


@pytest.fixture
def done(store):
    return stored(store, study(question(tp_size=[1]), FOUND))


@pytest.fixture
def running(store):
    asked = store.ask(question_of(MEASURED), Limits(max_probes=4))
    probe(store, asked.id)
    return asked.id


def words(element):
    return " ".join(element.text.split())


def test_a_study_that_was_answered(page, done):
    found = page(f"/studies/{done}?refresh=10")
    assert words(found.one("h1")) == "tiny on 8xa100-80gb"
    assert not found.find("noscript")
    assert {one["action"].rpartition("/")[2] for one in found.find("form")} == {"labels", "delete"}
    assert not found.find("meta", http_equiv="refresh"), "it stands still"
    for href in (f"/compare?ids={done}", f"/studies/{done}/settings", f"/new?like={done}"):
        assert found.find("a", href=href), href


def test_a_study_that_runs_moves_and_can_be_cancelled(page, running):
    found = page(f"/studies/{running}")
    live = found.by_id("study")["data-live"]
    assert live.startswith(f"/studies/{running}/live?sort=-speed&outcome=&after=")
    assert found.by_id("said")["role"] == "status"
    assert {one["action"].rpartition("/")[2] for one in found.find("form")} == {"labels", "cancel"}
    assert f"/studies/{running}?refresh=10" in {link["href"] for link in found.find("a")}
    assert not found.find("meta", http_equiv="refresh")
    (again,) = page(f"/studies/{running}?refresh=10").find("meta", http_equiv="refresh")
    assert again["content"] == "10"
    page(f"/studies/{running}?refresh=1", 422)
    for query in ("?after=x", "?after=-1", "?sort=" + "x" * 65):
        page(f"/studies/{running}/live{query}", 422)


def test_the_evidence_of_a_probe(page, done, running):
    found = page(f"/studies/{done}/probes/2")
    assert words(found.one("h1")) == "Probe #2: out of memory"
    for expected in ("backward, on rank 3", "80,530,636,800 bytes", "CUDA out of memory"):
        assert expected in words(found)
    links = {link["href"] for link in found.find("a")}
    assert {f"/studies/{done}/probes/1", f"/studies/{done}/probes/3"} <= links
    assert any(link.startswith(f"/studies/{done}/settings?sharding=") for link in links)
    well = page(f"/studies/{done}?probe=1")
    assert "all reduce" in words(well)
    assert well.find("svg")
    page(f"/studies/{running}/probes/99", 404)
    page(f"/studies/{done}/probes/0", 422)
    page("/studies/st-ffffffffffff", 404)
    page("/studies/st-ffffffffffff/probes/1", 404)


def test_a_lost_attempt_is_part_of_the_evidence(page, store, browser, running):
    claim = claimed(store, running)
    with store.transactions.write() as session:
        session.execute(update(AttemptRow).values(lease_until=datetime(2000, 1, 1, 12)))
    assert store.reap() == 1
    told = words(page(f"/studies/{running}/probes/{claim.probe.id}"))
    assert f"lost at {datetime.now(UTC):%Y-%m-%d}" in told
    assert f"(no sign of its worker for 60 s); {claim.worker.name} had it since" in told
    probe = browser.get(f"/tune/{running}/probes").json()["probes"][-1]
    (wasted,) = probe["wasted"]
    assert (wasted["number"], wasted["state"], wasted["worker"]) == (1, "lost", claim.worker.name)


def test_a_study_is_cancelled_from_its_page(browser, page, store, running):
    path = f"/studies/{running}"
    token = browser.token(path)
    assert browser.post(f"{path}/cancel").status_code in (403, 415)
    assert browser.post(f"{path}/cancel", data={"csrf_token": "0" * 64}).status_code == 403
    assert store.study(running).state is StudyState.RUNNING
    answer = browser.submit(f"{path}/cancel", page=path)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert store.study(running).state is StudyState.CANCELLED
    assert Audit(store.transactions).newest(1)[0].action == Action.CANCEL
    assert not page(path).find("form", action=f"{path}/cancel")
    assert browser.post(f"{path}/cancel", data={"csrf_token": token}).status_code == 409


def test_a_name_labels_and_notes_are_written_from_its_page(browser, page, store, running):
    path = f"/studies/{running}"
    given = {"name": "  the   first ", "labels": "job=12 b\r\nurgent\r\n", "notes": "a\r\nb"}
    assert browser.submit(f"{path}/labels", given, page=path).status_code == 303
    assert store.study(running).labels == {"name": "the first", "job": "12 b", "urgent": ""}
    assert store.notes(running) == "a\nb"
    found = page(path)
    assert words(found.one("h1")) == "the first"
    assert found.by_id("label-labels").text == "job=12 b\nurgent"
    assert "a\nb" in found.one(class_="notes").text
    assert Audit(store.transactions).newest(1)[0].action == Action.LABEL
    assert browser.submit(f"{path}/labels", {"labels": "urgent"}, page=path).status_code == 303
    assert store.study(running).labels == {"urgent": ""}, "what was emptied is gone"
    wrong = browser.submit(f"{path}/labels", {"labels": "<b>"}, page=path)
    assert wrong.status_code == 422


def test_a_study_is_deleted_from_its_page_once_it_has_ended(browser, page, store, done, running):
    refused = browser.submit(f"/studies/{running}/delete", page=f"/studies/{done}")
    assert refused.status_code == 409
    assert "is running: cancel it first" in refused.text
    claimed(store, running)
    assert store.move(running, StudyState.CANCELLED)
    refused = browser.submit(f"/studies/{running}/delete", page=f"/studies/{done}")
    assert refused.status_code == 409
    assert "is cancelled, but a worker is still ending a probe of it" in refused.text
    assert browser.post(f"/studies/{done}/delete", data={}).status_code in (403, 415)
    answer = browser.submit(f"/studies/{done}/delete", page=f"/studies/{done}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert store.status(done) is None
    noted = Audit(store.transactions).newest(1)[0]
    assert (noted.action, noted.study_id) == (Action.DELETE, done)
    page(f"/studies/{done}", 404)
