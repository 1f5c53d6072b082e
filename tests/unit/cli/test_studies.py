"""``tuner studies``."""

from dataclasses import replace

from sqlalchemy import update
from sqlalchemy.orm import Session

from tuner.client.answered import keep_line
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits
from tuner.explain.known import best_known
from tuner.results.summary import summary_of
from tuner.store import open_store
from tuner.store.tables import ProbeRow


def test_a_study_is_shown_as_json(cli, answered):
    found = cli("studies", "show", answered.id, "--json").json
    assert list(found) == ["study", "probes", "suggestion"]
    assert found["study"]["question"] == answered.question.as_dict()
    assert [probe["outcome"] for probe in found["probes"]] == ["ok", "ok"]
    assert found["probes"][0]["fits"] is True
    assert found["probes"][0]["measurement"]["memory"]["allocated_bytes"] == 20 * 2**20
    assert found["suggestion"]["best"]["settings"]["sharding"] == "full_shard"


def test_what_a_queued_study_waits_for_is_shown(cli, answered):
    with open_store() as store:
        store.ask(answered.question, Limits(max_probes=50, pool="big"))
    found = cli("studies", "show", answered.id, "--json").json["study"]
    assert found["reason"] == "no worker runs: start one with tuner worker --pool big"


def test_what_is_not_there_is_a_usage_error(cli, answered, tmp_path):
    result = cli("studies", "list", "--db", f"sqlite:///{tmp_path}/none.db")
    assert (result.code, "there is no such database yet" in result.err) == (2, True)
    result = cli("studies", "show", "st-nothing")
    assert result.code == 2
    assert result.err.startswith("tuner: error: study: got 'st-nothing'; ")
    result = cli("db", "upgrade", "--db", "mysql://user:secret@host/x")
    assert result.code == 2
    assert "secret" not in result.err
    assert cli("studies", "cancel", "st-zzz").code == 2
    result = cli("studies", "cancel", answered.id)
    assert (result.code, "done already" in result.err) == (1, True)


def test_studies_are_listed_by_their_labels(cli, answered):
    asked = ("--model", "stories15m", "--cluster", "8xa100-80gb", "--global-batch-size", "64",
             "--sequence-length", "128")  # fmt: skip
    twice = cli("suggest", *asked, "--fidelity", "predicted", "--label", "a=1", "--label", "a=2")
    assert (twice.code, "a is given twice" in twice.err) == (2, True)
    wrong = cli("suggest", *asked, "--fidelity", "predicted", "--label", "a b=1")
    assert (wrong.code, "label: got 'a b'" in wrong.err) == (2, True)
    with open_store() as store:
        store.label(answered.id, {"job": "17", "urgent": ""})
    found = cli("studies", "list", "--label", "job=17", "--label", "urgent", "--json").json
    assert [(one["id"], one["labels"]) for one in found["studies"]] == [
        (answered.id, {"job": "17", "urgent": ""})
    ]
    none = cli("studies", "list", "--label", "job=18")
    assert (none.code, none.out.strip()) == (0, "no study is labelled job=18")


def test_a_study_with_an_answer_is_listed_as_done(cli, answered):
    assert " done " in cli("studies", "list").out


def test_a_dry_run_that_is_ok_is_no_answer(cli, answered):
    with open_store() as store, Session(store.transactions.writer) as session, session.begin():
        session.execute(update(ProbeRow).values(fidelity=Fidelity.PREDICTED))
    listed = cli("studies", "list").out
    assert (" no answer " in listed, " done " in listed) == (True, False)


def test_a_study_without_an_answer_is_not_listed_as_done(cli, failed):
    listed = cli("studies", "list").out
    assert (" no answer " in listed, " done " in listed) == (True, False)
    with open_store() as store:  # as a page that was looked at keeps it
        line, event = summary_of(failed, best_known(failed)), store.status(failed.id).newest_event
        keep_line(store, replace(line, shown_state="not measured"), event)
    assert " not measured " in cli("studies", "list").out
    assert "no answer (" in cli("studies", "show", failed.id).out
    with open_store() as store:
        store.ask(failed.question, failed.limits)
    assert "measured" not in cli("studies", "list").out, "asked again, it is open"


def test_a_study_is_deleted_at_its_end(cli, answered):
    result = cli("studies", "delete", answered.id, "--json")
    assert (result.code, result.json) == (0, {"study_id": answered.id})
    assert cli("studies", "list", "--json").json == {"studies": []}
    assert cli("studies", "delete", answered.id).code == 2


def test_an_open_study_is_not_deleted(cli, answered):
    with open_store() as store:
        store.ask(answered.question, Limits())
    result = cli("studies", "delete", answered.id)
    assert (result.code, "cancel it first" in result.err) == (1, True)


def test_what_is_old_is_deleted(cli, answered):
    assert cli("db", "prune", "--older-than", "90d", "--json").json == {"studies": 0, "audit": 0}
    assert cli("db", "prune", "--older-than", "soon").code == 2
