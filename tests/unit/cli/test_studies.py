"""Commands that read what is stored: list, show, export, and db."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.made import ok, stored
from tuner.core.study import Question, Study
from tuner.store import open_store


def test_without_a_database_the_list_is_empty(cli: Any, database: Path) -> None:
    result = cli("studies", "list")
    assert result.code == 0
    assert result.out.startswith("no studies yet")
    assert cli("studies", "list", "--json").json == {"studies": []}
    assert not database.exists()


def test_a_named_database_must_be_there(cli: Any, tmp_path: Path) -> None:
    result = cli("studies", "list", "--db", f"sqlite:///{tmp_path}/none.db")
    assert result.code == 2
    assert "none.db'; there is no such database yet" in result.err


def test_studies_are_listed(cli: Any, answered: Study) -> None:
    result = cli("studies", "list")
    head, _, row = result.out.splitlines()
    assert head.split() == [
        "study",
        "model",
        "cluster",
        "state",
        "probes",
        "asked",
        "(UTC)",
        "reason",
    ]
    assert row.split()[:5] == [answered.id, "tiny", "cpu:2", "done", "2"]
    assert row.rstrip().endswith("the budget is spent")


def test_studies_are_listed_as_json(cli: Any, answered: Study) -> None:
    (found,) = cli("studies", "list", "--json").json["studies"]
    assert found == {
        "id": answered.id,
        "model": "tiny",
        "cluster": "cpu:2",
        "state": "done",
        "reason": "the budget is spent",
        "probes": {"ok": 2},
        "created_at": answered.created_at,
        "asked_at": answered.asked_at,
    }


def test_narrow_terminals_get_no_reasons(
    cli: Any, answered: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("studies", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in lines[2]
    assert answered.id in lines[2]


@pytest.mark.parametrize("cut", [5, 12, None])
def test_a_study_is_shown_by_a_beginning_of_its_id(cli: Any, answered: Study, cut: int) -> None:
    result = cli("studies", "show", answered.id[:cut])
    assert result.code == 0
    for part in (
        "Question  tiny on cpu:2 (accelerate), global batch 8",
        "Versions  accelerate ",
        "Terms     at most 5 probes; memory limit ",
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


def test_an_unknown_study_is_a_usage_error(cli: Any, answered: Study) -> None:
    result = cli("studies", "show", "st-nothing")
    assert result.code == 2
    assert result.err.startswith("tuner: error: study: got 'st-nothing'; ")


def test_an_answer_is_exported_to_stdout(cli: Any, answered: Study) -> None:
    result = cli("export", answered.id, "accelerate")
    assert (result.code, result.err) == (0, "")
    assert yaml.safe_load(result.out)["fsdp_config"]["fsdp_reshard_after_forward"] is True


def test_an_answer_is_exported_to_a_file(cli: Any, answered: Study, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    result = cli("export", answered.id, "accelerate", "--write", str(path))
    assert (result.code, result.out, result.err) == (0, "", f"wrote {path}\n")
    assert path.read_text() == cli("export", answered.id, "accelerate").out


def test_an_answer_is_exported_as_json(cli: Any, answered: Study) -> None:
    found = cli("export", answered.id, "accelerate", "--json").json
    assert (found["study_id"], found["format"], found["path"]) == (answered.id, "accelerate", None)
    assert "fsdp_version: 2" in found["text"]


def test_what_cannot_be_exported(cli: Any, answered: Study, tmp_path: Path) -> None:
    for arguments, message in (
        (["accelrate"], "format: got 'accelrate'; no such name; did you mean accelerate, "),
        (["accelerate", "--write", str(tmp_path)], "is a folder; name a file in it"),
    ):
        result = cli("export", answered.id, *arguments)
        assert (result.code, result.out) == (2, "")
        assert message in result.err


def test_a_study_without_an_answer_is_not_exported(cli: Any, unanswered: Study) -> None:
    result = cli("export", unanswered.id, "accelerate")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("tuner: error: nothing that was probed fits: ")


def test_a_failed_study_is_not_exported(cli: Any, failed: Study) -> None:
    result = cli("export", failed.id, "accelerate", "--json")
    assert result.code == 1
    assert result.json["error"]["exit_code"] == 1


def test_a_database_is_made_and_brought_up_to_date(cli: Any, database: Path) -> None:
    made = cli("db", "upgrade")
    assert made.code == 0
    assert made.out.startswith(f"{database}: applied 0010")
    assert cli("db", "upgrade").out == f"{database}: is up to date\n"
    assert cli("db", "upgrade", "--json").json == {"db": str(database), "applied": []}


def test_a_database_is_checked(cli: Any, answered: Study, database: Path) -> None:
    assert cli("db", "check").out == f"{database}: in order\n"
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE measurements")
    connection.close()
    result = cli("db", "check", "--json")
    assert result.code == 1
    assert result.json["problems"]


def test_a_database_that_is_absent_is_not_checked(cli: Any, database: Path) -> None:
    result = cli("db", "check")
    assert result.code == 2
    assert not database.exists()


def test_a_password_is_not_shown(cli: Any) -> None:
    result = cli("db", "upgrade", "--db", "mysql://user:secret@host/x")
    assert result.code == 2
    assert "secret" not in result.err
