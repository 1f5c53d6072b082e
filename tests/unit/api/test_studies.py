"""Requests, and studies seen, listed and cancelled over HTTP."""

import asyncio
import json
import threading
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import yaml
from sqlalchemy import update

from api.answers import Answers, brief
from api.app import tidy
from api.schemas import Brief, Study, Submitted, SubmittedBrief
from tests.questions import question_about
from tests.unit.api.studies import MEASURED, PREDICTED, WORKLOAD, finish, probe, question_of
from tuner.client.remote import study_of
from tuner.core.framework import installed_versions
from tuner.core.measurement import Measurement, Outcome
from tuner.core.script import read_script
from tuner.core.study import Limits, StudyState
from tuner.errors import StoreError
from tuner.launchfiles import FORMATS
from tuner.machine import Machine, ReportedGpu
from tuner.model import load_model
from tuner.model.shape import unnamed_model
from tuner.planner import Stop, next_probe
from tuner.results.summary import in_brief
from tuner.store import WorkerIdentity
from tuner.store.tables import StudyRow, WorkerRow, clock
from tuner.store.workers import Workers

PROBLEM = "application/problem+json"


def ask(client, body=PREDICTED, **headers):
    return client.post("/tune", json=body, headers=headers)


def test_a_question_is_taken_and_pending_while_nothing_is_known(client, store):
    response = ask(client)
    assert response.status_code == 202, response.text
    body = response.json()
    Submitted.model_validate(body)
    assert response.headers["location"] == f"/tune/{body['study_id']}"
    assert (body["state"], body["pending"], body["suggestion"]) == ("queued", True, None)
    assert body["terms"]["fidelity"] == "predicted"
    assert any("no worker of this service lives" in note for note in body["notes"])
    assert store.study(body["study_id"]).state is StudyState.QUEUED
    assert client.get(response.headers["location"]).json() == {
        name: value for name, value in body.items() if name != "notes"
    }


def test_before_a_worker_lives_cpu_ranks_are_to_be_measured_where_probes_can_be(client):
    open_asked = {name: value for name, value in MEASURED.items() if name != "fidelity"}
    for framework, fidelity in (("accelerate", "measured"), ("nanotron", "predicted")):
        body = ask(client, {**open_asked, "framework": framework}).json()
        assert body["terms"]["fidelity"] == fidelity, body["notes"]
        assert body["notes"][-1].startswith(f"fidelity {fidelity}: no worker of this service lives")


def test_what_dry_runs_say_that_are_kept_is_answered_at_once(client, keep_dry_runs):
    keep_dry_runs(PREDICTED)
    body = ask(client).json()
    assert (body["state"], body["pending"]) == ("done", False)
    best = body["suggestion"]["best"]
    assert best["provenance"] == "predicted"
    assert best["memory"]["basis"] == "dry_run"
    assert body["suggestion"]["launch"]["argv"][0] == "torchrun"
    assert body["no_answer"] is None
    again = ask(client).json()
    assert again == body


def test_a_question_is_joined_answered_from_the_store_or_asked_again(client, store):
    study_id = ask(client, MEASURED).json()["study_id"]
    probe(store, study_id)
    before = store.study(study_id)
    assert ask(client, MEASURED).json()["study_id"] == study_id
    assert store.study(study_id) == before, "joined"
    finish(store, study_id)
    before = store.study(study_id)
    body = ask(client, MEASURED).json()
    assert (body["state"], body["suggestion"]["best"]["provenance"]) == ("done", "measured")
    assert store.study(study_id) == before, "answered"
    other = {**PREDICTED, "pool": "h100"}
    pooled = ask(client, other).json()
    assert any("no worker of pool h100 lives" in note for note in pooled["notes"])
    store.move(pooled["study_id"], StudyState.CANCELLED, "enough")
    ended = client.get(f"/tune/{pooled['study_id']}").json()
    Study.model_validate(ended)
    assert ended["reason"] == "enough"
    assert ask(client, other).json()["state"] != "cancelled"


def test_probes_have_the_numbers_that_a_client_shows(client, store):
    ask(client, {**MEASURED, "cluster": "cpu:4"})  # another study's rows come first
    path = ask(client, MEASURED).headers["location"]
    (other,) = (one.id for one in store.studies() if one.id not in path)
    probe(store, other)
    known = probe(store, path.rpartition("/")[2])
    probes = client.get(f"{path}/probes").json()["probes"]
    read = study_of(client.get(path).json(), probes)
    assert [one.id for one in read.probes] == [one.id for one in known.probes]


def test_a_study_in_brief_is_small_and_in_lists_it_has_its_answer(client, keep_dry_runs):
    other = ask(client, {**PREDICTED, "cluster": "4xa100-80gb"}).headers["location"]
    pending = client.get(f"{other}?view=brief").json()
    Brief.model_validate(pending)
    assert (pending["pending"], pending["settings"], pending["launch"]) == (True, None, [])
    keep_dry_runs(PREDICTED)
    full = ask(client).json()
    for number in ("d1", "-1"):  # a dry run, as pages and as JSON have it
        assert client.get(f"/studies/{full['study_id']}/probes/{number}").status_code == 200
    response = client.get(f"/tune/{full['study_id']}?view=brief")
    assert len(response.content) < 1000
    short, best = response.json(), full["suggestion"]["best"]
    Brief.model_validate(short)
    assert (short["state"], short["settings"]) == ("done", best["settings"])
    assert short["launch"] == full["suggestion"]["launch"]["argv"]
    speed = best["tokens_per_s_per_gpu"]["value"]
    assert short["tokens_per_s_per_gpu"] == float(f"{speed:.4g}")
    assert short["needed_gib"] == float(f"{best['memory']['needed_gib']['value']:.4g}")
    assert short["warnings"] == []
    found = {
        "facts": [{"kind": "chosen"}, {"kind": "other_load"}],
        "explanation": ["Best.", "Busy."],
    }
    assert in_brief({**full, "suggestion": {**full["suggestion"], **found}})["warnings"] == [
        "Busy."
    ]
    assert client.get(f"/tune/{full['study_id']}?view=long").status_code == 422
    asked = client.post("/tune?view=brief", json=PREDICTED)
    SubmittedBrief.model_validate(asked.json())
    assert asked.json() == {**short, "notes": full["notes"]}
    assert asked.json()["terms_id"] == full["terms_id"]
    listed, unknown = client.get("/tune").json()["studies"]
    assert unknown["answer"]["settings"] is None
    assert listed["answer"]["settings"].items() >= best["settings"].items()
    assert listed["answer"]["tokens_per_s_per_gpu"] == best["tokens_per_s_per_gpu"]


def test_a_probe_s_event_has_its_figures(client, store):
    study_id = ask(client, MEASURED).json()["study_id"]
    probe(store, study_id)
    done = [one.data for one in store.events(study_id) if one.data.get("outcome")]
    assert (done[0]["fidelity"], done[0]["outcome"], done[0]["step_time_s"]) == (
        "measured",
        "ok",
        1.0,
    )
    assert done[0]["tokens_per_s"] == 32 * 16
    assert done[0]["allocated_bytes"] == 3 * 10**8


def test_no_address_is_called(client, store):
    for name in ("callback_url", "webhook"):
        refused = ask(client, {**PREDICTED, name: "http://169.254.169.254/"})
        assert (refused.status_code, refused.json()["field"]) == (422, name)
        assert "no address is called" in refused.json()["detail"]
        assert "/tune/{id}?wait=30" in refused.json()["allowed"]
    assert store.studies() == []


def test_labels_are_kept_shown_and_listed_by(client):
    one = ask(client, {**PREDICTED, "labels": {"job": "17", "user": "ada"}}).json()
    two = ask(client, {**MEASURED, "labels": {"user": "ada"}}).json()
    assert one["labels"] == {"job": "17", "user": "ada"}

    def listed(query):
        studies = client.get(f"/tune?{query}").json()["studies"]
        return [study["study_id"] for study in studies]

    assert listed("label=user%3Dada") == [two["study_id"], one["study_id"]]
    assert listed("label=user%3Dada&label=job") == listed("label=job=17") == [one["study_id"]]
    assert listed("label=job=18") == listed("label=none") == []
    joined = ask(client, {**PREDICTED, "labels": {"job": "18"}})  # of the same study
    assert joined.json()["labels"] == {"job": "18", "user": "ada"}
    shown = client.get(f"/tune/{one['study_id']}")
    assert (shown.json()["labels"], shown.headers["etag"]) == (
        joined.json()["labels"],
        joined.headers["etag"],
    )
    assert client.get("/tune?label=job=18").json()["studies"][0]["labels"]["job"] == "18"
    for labels in ([], {"a b": "x"}, {"job": 17}, {"job": "\x00"}):
        refused = ask(client, {**PREDICTED, "labels": labels})
        assert (refused.status_code, refused.json()["field"].split(".")[0]) == (422, "labels")
    assert ask(client, {**PREDICTED, "labels": {"job": 17}}).json()["field"] == "labels.job"


OTHER = {**MEASURED, "budget": {"max_probes": 5}, "headroom": 0.2}


def test_other_terms_of_an_open_study_are_refused(client, store):
    first = ask(client, MEASURED).json()
    before = store.study(first["study_id"])
    refused = ask(client, OTHER, **{"Idempotency-Key": "one"})
    assert refused.status_code == 409
    assert refused.headers["content-type"] == PROBLEM
    body = refused.json()
    assert body["study_id"] == first["study_id"]
    assert body["terms"] == {
        "headroom": {"study": 0.05, "asked": 0.2},
        "max_probes": {"study": 4, "asked": 5},
    }
    assert (
        "is open with other limits (headroom 0.05, not 0.2, max_probes 4, not 5)" in body["detail"]
    )
    assert store.study(first["study_id"]) == before
    store.move(first["study_id"], StudyState.CANCELLED)
    again = ask(client, OTHER, **{"Idempotency-Key": "one"})  # which nothing has used up
    assert (again.status_code, again.json()["terms"]["max_probes"]) == (202, 5)


def test_no_answer_is_given_on_terms_of_another(client, keep_dry_runs):
    """Also where the study had ended, and the question was asked anew before it was read."""
    asked = {**PREDICTED, "framework": "accelerate"}
    keep_dry_runs(asked)
    first = ask(client, asked).json()
    path, mine = f"/tune/{first['study_id']}", f"terms={first['terms_id']}"
    export = f"{path}/export/accelerate"
    assert first["state"] == "done"
    assert client.get(f"{path}?{mine}").json()["terms"] == first["terms"]
    assert client.get(f"{export}?{mine}").status_code == 200
    other = ask(client, {**asked, "headroom": 0.5}).json()
    assert other["terms"]["headroom"] == 0.5
    for refused in (f"{path}?{mine}", f"{path}?{mine}&wait=1", f"{export}?{mine}"):
        found = client.get(refused)
        assert (found.status_code, found.headers["content-type"]) == (409, PROBLEM)
        assert found.json()["terms"]["headroom"] == {"study": 0.5}
        assert "was given other limits meanwhile" in found.json()["detail"]
    assert client.get(f"{path}?terms={other['terms_id']}").status_code == 200
    assert client.get(f"{export}?terms=mine").status_code == 422


def test_an_idempotency_key_asks_once(client, store):
    first = ask(client, MEASURED, **{"Idempotency-Key": "one"})
    study_id = first.json()["study_id"]
    store.move(study_id, StudyState.CANCELLED)
    again = ask(client, MEASURED, **{"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")
    other = ask(client, {**MEASURED, "headroom": 0.1}, **{"Idempotency-Key": "one"})
    assert other.status_code == 422
    assert other.json()["field"] == "Idempotency-Key"
    assert ask(client, MEASURED, **{"Idempotency-Key": "two"}).json()["state"] == "queued"


WRONG = (
    ({}, "workload"),
    ({**PREDICTED, "workload": {**WORKLOAD, "model": "/etc/passwd"}}, "workload.model"),
    ({**PREDICTED, "cluster": "local"}, "cluster"),
    ({**PREDICTED, "script": {"path": "/etc/passwd", "arguments": []}}, "script"),
    ([], "body"),
)


def test_what_is_wrong_is_named_and_nothing_is_written(client, store):
    for body, field in WRONG:
        response = ask(client, body)
        found = response.json()
        assert response.headers["content-type"] == PROBLEM
        assert (response.status_code, found["field"], found["code"]) == (
            422,
            field,
            "invalid_value",
        )
        assert found["detail"].startswith(field)
        assert found["allowed"]
    for key in ("", "x" * 256, "a\tb"):
        response = ask(client, PREDICTED, **{"Idempotency-Key": key})
        assert (response.status_code, response.json()["field"]) == (422, "idempotency-key")
    assert store.studies() == []


def test_a_study_is_sent_once_until_it_changes(client, store):
    path = ask(client, MEASURED).headers["location"]
    first = client.get(path)
    Study.model_validate(first.json())
    known = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    probe(store, path.removeprefix("/tune/"))
    changed = client.get(path, headers=known)
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


def test_waiting_ends_with_what_is_waited_for(client, app, store):
    first = ask(client, MEASURED)
    path, known = first.headers["location"], {"If-None-Match": first.headers["etag"]}
    study_id = path.removeprefix("/tune/")
    assert client.get(f"{path}?wait=1", headers=known).status_code == 304

    def waited(after, headers):
        timer = threading.Timer(0.2, after)
        timer.start()
        found = client.get(f"{path}?wait=60", headers=headers)
        timer.join()
        return found.json()["state"]

    assert waited(lambda: probe(store, study_id), known) == "running", "the next change"
    assert waited(lambda: store.move(study_id, StudyState.CANCELLED), {}) == "cancelled"
    assert client.get(f"{path}?wait=60").json()["state"] == "cancelled", "which it is"
    ask(client, MEASURED)
    assert waited(app.state.stopping, {}) in ("queued", "running"), "the service ends"


def test_errors_are_problems(client):
    study = "/tune/st-000000000000"
    for method, path, status in (
        ("GET", study, 404),
        ("GET", f"{study}?wait=1", 404),
        ("GET", f"{study}/export/accelerate", 404),
        ("DELETE", study, 404),
        ("GET", "/tune/nope/events", 404),
        ("GET", f"/tune/{'x' * 650}", 404),
        ("GET", f"{study}?wait=0", 422),
        ("GET", "/tune?query=%00", 422),
        ("GET", "/tune?label=a%20b", 422),
        ("GET", "/tune?label=a&label=a%3Db", 422),
        ("GET", "/tune?cursor=bm90aGluZw", 422),
        ("GET", "/tune?cursor=", 422),
        ("GET", f"{study}?waits=30", 422),
        ("DELETE", f"{study}?force=1", 422),
    ):
        response = client.request(method, path)
        body = response.json()
        code = "study_not_found" if status == 404 else "invalid_value"
        assert (response.status_code, body["status"], body["code"]) == (status, status, code), path
        assert response.headers["content-type"] == PROBLEM
        assert body["detail"]


def test_a_study_is_cancelled_once(client):
    path = ask(client, MEASURED).headers["location"]
    response = client.delete(path)
    assert response.status_code == 200
    assert response.json()["state"] == "cancelled"
    again = client.delete(path)
    assert again.status_code == 409
    assert "cancelled already" in again.json()["detail"]
    (noted, *_) = client.get("/audit").json()["audit"]
    assert noted["action"] == "tune.cancel"
    assert noted["study_id"] == path.removeprefix("/tune/")


ACCELERATE = {**PREDICTED, "framework": "accelerate"}


def test_files_of_answers(client, store, keep_dry_runs):
    keep_dry_runs(ACCELERATE)
    path = client.post("/tune", json=ACCELERATE).headers["location"]
    response = client.get(f"{path}/export/accelerate")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/yaml"
    assert response.headers["content-disposition"] == 'attachment; filename="accelerate.yaml"'
    assert yaml.safe_load(response.text)["compute_environment"] == "LOCAL_MACHINE"
    assert path.removeprefix("/tune/") in response.text
    unknown = client.get(f"{path}/export/acelerate")
    assert (unknown.status_code, unknown.json()["nearest"][0]) == (404, "accelerate")
    assert client.get(f"{path}/export/..%2Fx").status_code in (404, 422)
    open_path = client.post("/tune", json=MEASURED).headers["location"]
    early = client.get(f"{open_path}/export/accelerate")
    assert (early.status_code, early.json()["code"]) == (409, "no_answer")
    probe(store, open_path.removeprefix("/tune/"))
    assert "measured" in client.get(f"{open_path}/export/accelerate").text


def test_what_trains_something_else_is_not_exported(client, store):
    knobs = {"sync_each_batch": [True], "gradient_accumulation_steps": [2, 4]}
    path = client.post("/tune", json={**MEASURED, "knobs": knobs}).headers["location"]
    study_id = path.removeprefix("/tune/")
    found = Measurement(
        outcome=Outcome.WRONG_RESULT,
        detail="rank 0: the optimizer stepped 18 times instead of 6",
        optimizer_steps=18,
        expected_optimizer_steps=6,
        versions={"torch": f"{installed_versions()['torch']}+cpu"},
    )
    probe(store, study_id, found)
    study = probe(store, study_id, found)
    stop = next_probe(study)
    assert isinstance(stop, Stop)
    assert store.move(study_id, StudyState.FAILED, stop.failure)

    why = "sync_each_batch=true trains something else: rank 0: the optimizer stepped 18 times"
    refused = client.get(f"{path}/export/accelerate")
    assert refused.status_code == 409
    assert refused.json()["reason"] == "trains_wrongly"
    assert why in refused.json()["detail"]
    shown = client.get(path).json()
    assert (shown["state"], shown["no_answer"]["kind"]) == ("failed", "trains_wrongly")
    assert why in shown["no_answer"]["message"]
    page = client.get(f"/studies/{study_id}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "trains something else" in page.text

    # another question about the same program and versions
    other = {**PREDICTED, "framework": "accelerate", "knobs": knobs}
    path = client.post("/tune", json=other).headers["location"]
    assert client.get(f"{path}/export/accelerate").json()["reason"] == "trains_wrongly"
    stated = {"name": "accelerate", "versions": {"accelerate": "1.14.0"}}
    path = client.post("/tune", json={**other, "framework": stated}).headers["location"]
    assert "reason" not in client.get(f"{path}/export/accelerate").json()


def test_a_database_that_cannot_be_used_is_503_and_not_named(client, app, monkeypatch):
    def fail(*arguments, **more):
        raise StoreError("the database /secret/place cannot be used: disk I/O error")

    monkeypatch.setattr(app.state.context.store, "studies", fail)
    response = client.get("/tune")
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert "secret" not in response.text
    monkeypatch.undo()
    assert client.get("/tune").status_code == 200


def test_no_ones_name_of_a_model_is_in_anothers_files(client, keep_dry_runs):
    own = load_model("stories15m").as_config()
    named = {**PREDICTED, "workload": {**WORKLOAD, "model": own, "model_name": "evil/repo"}}
    published = {**PREDICTED, "workload": {**WORKLOAD, "model": "stories15m"}}
    first, second = ask(client, named).json(), ask(client, published).json()
    assert first["study_id"] == second["study_id"]
    assert second["question"]["workload"]["model_name"] == "stories15m"
    assert "evil" not in str(second)
    mine = {**PREDICTED, "workload": {**WORKLOAD, "model_name": "evil/repo"}}
    keep_dry_runs(mine)
    path = ask(client, mine).headers["location"]
    assert "evil" not in str(client.get(path).json()["suggestion"]["launch"])
    for name in FORMATS:
        found = client.get(f"{path}/export/{name}")
        assert "evil" not in found.text, name
    assert "TUNED_MODEL" not in client.get(f"{path}/export/env").text


def test_why_all_probes_failed_is_said(client, store):
    study_id = ask(client, MEASURED).json()["study_id"]
    why = "the script ended with 3, and reported no step"
    crashed = Measurement(outcome=Outcome.CRASHED, detail=why)
    probe(store, study_id, crashed)
    again = store.claim(study_id, WorkerIdentity.of_this_process())
    assert store.record(again, crashed)
    finish(store, study_id)
    found = client.get(f"/tune/{study_id}").json()["no_answer"]
    assert f"No probe has given a result; the last: crashed: {why}." in found["message"]


def test_a_study_that_was_deleted_is_not_found_and_its_request_asks_anew(client, store):
    study_id = ask(client, MEASURED, **{"Idempotency-Key": "one"}).json()["study_id"]
    finish(store, study_id)
    assert client.get(f"/tune/{study_id}").status_code == 200
    assert store.delete(study_id)
    assert client.get(f"/tune/{study_id}").json()["code"] == "study_not_found"
    again = ask(client, MEASURED, **{"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["state"]) == (202, "queued")


def test_what_is_older_than_is_kept_is_deleted(store):
    study_id = store.ask(question_of(MEASURED), Limits()).id
    store.move(study_id, StudyState.CANCELLED)
    with store.transactions.write() as session:
        session.execute(update(StudyRow).values(asked_at=clock(session) - timedelta(days=8)))

    async def tidied():
        async with asyncio.timeout(10):
            task = asyncio.create_task(tidy(store, keep_days=7))
            while store.status(study_id) is not None:
                await asyncio.sleep(0.01)
            task.cancel()

    asyncio.run(tidied())


def test_a_queued_study_says_what_it_waits_for(client, store):
    """What workers there are changes without an event: what is kept of a study has an age."""
    asked = {**PREDICTED, "cluster": "4x8xh100-80gb", "fidelity": "measured", "pool": "big"}
    path = ask(client, asked).headers["location"]

    def reason():
        answers = Answers(store)
        content = answers.of(store.status(path.rpartition("/")[2])).content
        assert json.loads(brief(content))["reason"] == json.loads(content)["reason"]
        return json.loads(content)["reason"]

    assert client.get(path).json()["reason"] == reason()
    assert reason() == "no worker runs: start one with tuner worker --pool big"
    here = WorkerIdentity.of_this_process()
    workers, versions = Workers(store.transactions), installed_versions()
    machine = Machine(name="cpus", gpus=(), cores=8, memory_bytes=2**36)
    workers.register(here, ["big"], machine.as_dict(), versions)
    needed = "waiting for a worker that has 4x8xh100-80gb: none of those alive has"
    assert reason() == needed
    gpus = (ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559, uuid="GPU-1"),) * 8
    nodes = tuple(replace(machine, name=f"node{n}", gpus=gpus) for n in range(4))
    workers.register(here, [], replace(nodes[0], others=nodes[1:]).as_dict(), versions)
    assert reason() == needed, "it serves no such pool"
    workers.register(here, ["big"], replace(nodes[0], others=nodes[1:]).as_dict(), versions)
    assert reason() == "a worker is about to take it"
    with store.transactions.write() as session:  # the disk is full, or it is stopped
        session.execute(update(WorkerRow).values(seen_at=datetime(2026, 1, 1, 12, 34, 56)))
    told = f"no sign of {here.name} (process {here.pid}) on this machine since 12:34:56 UTC"
    assert reason().startswith(told)


@pytest.fixture
def script_study(store, tmp_path):
    (tmp_path / "train.py").write_text("")
    asked = question_of(MEASURED)
    script = read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path)
    question = question_about(
        unnamed_model(), asked.cluster, asked.framework, tokens=32, batch=16, script=script
    )
    return store.ask(question, Limits()).id


def test_it_is_pending_until_something_is_measured(client, store, script_study):
    body = client.get(f"/tune/{script_study}").json()
    assert body["question"]["workload"]["model"] is None, "what stands for it is nobody's model"
    assert body["question"]["script"]["path"].endswith("train.py")
    assert body["suggestion"] is None or body["suggestion"]["best"] is None
    assert body["pending"] is True
    probe(store, script_study)
    after = client.get(f"/tune/{script_study}").json()
    assert after["pending"] is False
    found = after["suggestion"]
    assert found["best"]["provenance"] == "measured"
    assert found["workload"]["model"] is None
    assert found["launch"]["argv"][4].endswith("train.py")
