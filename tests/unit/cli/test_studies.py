"""``tuner studies``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.made import ok, stored
from tuner.core.study import Question, Study
from tuner.store import open_store


def test_without_a_database_the_list_is_empty(cli: Any, database: Path) -> None:
    result = cli("studies", "list")
    assert result.code == 0
    assert result.out.startswith("no studies yet")
    assert cli("studies", "list", "--json").json == {"studies": []}
    assert not database.exists()


def test_a_study_is_shown_by_a_beginning_of_its_id(cli: Any, answered: Study) -> None:
    result = cli("studies", "show", answered.id[:5])
    assert result.code == 0
    for part in (
        "Question  tiny on cpu:2 (accelerate), global batch 8",
        "Versions  accelerate ",
        "Limits    at most 5 probes; memory limit ",
        "; tolerance 1%; measured",
        "State     done (the budget is spent); asked ",
        "\nAnswer\n",
        f"Study    {answered.id}",
    ):
        assert part in result.out


def test_a_study_is_shown_as_json(cli: Any, answered: Study) -> None:
    found = cli("studies", "show", answered.id, "--json").json
    assert list(found) == ["study", "probes", "suggestion"]
    assert found["study"]["question"] == answered.question.as_dict()
    assert [probe["outcome"] for probe in found["probes"]] == ["ok", "ok"]
    assert found["probes"][0]["fits"] is True
    assert found["probes"][0]["measurement"]["memory"]["allocated_bytes"] == 20 * 2**20
    assert found["suggestion"]["best"]["settings"]["sharding"] == "full_shard"


def test_failed_probes_show_the_end_of_their_logs(cli: Any, failed: Study) -> None:
    result = cli("studies", "show", failed.id)
    assert result.code == 0
    assert "end of rank 0's log" in result.out
    assert "  RuntimeError: no such kernel" in result.out


def test_notes_on_probes_are_shown(cli: Any, made: str, question: Question) -> None:
    with open_store() as store:
        rows = [
            ("sharding=ddp,micro_batch_size=4", replace(ok(0.1, 20), notes=(f"hot {n}",)))
            for n in range(7)
        ]
        study = stored(store, question, *rows, ("sharding=full_shard,micro_batch_size=4", ok(1, 9)))
    found = cli("studies", "show", study.id)
    lines = [line for line in found.out.splitlines() if "hot" in line or "notes" in line]
    assert lines == [f"Probe #{n + 1}: hot {n}." for n in range(5)] + [
        "2 more such notes: --json has them."
    ]
    probes = cli("studies", "show", study.id, "--json").json["probes"]
    notes = [one["measurement"]["notes"] for one in probes]
    assert notes == [*([f"hot {n}"] for n in range(7)), []]


def test_studies_are_listed(cli: Any, answered: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, row = cli("studies", "list").out.splitlines()
    assert head.split()[:6] == ["study", "model", "cluster", "state", "probes", "asked"]
    assert row.split()[:5] == [answered.id, "tiny", "cpu:2", "done", "2"]
    assert row.rstrip().endswith("the budget is spent")
    (found,) = cli("studies", "list", "--json").json["studies"]
    assert found == {
        "id": answered.id, "model": "tiny", "cluster": "cpu:2", "state": "done",
        "reason": "the budget is spent", "probes": {"ok": 2}, "created_at": answered.created_at,
        "asked_at": answered.asked_at,
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("studies", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in lines[2]


def test_what_is_not_there_is_a_usage_error(cli: Any, answered: Study, tmp_path: Path) -> None:
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
