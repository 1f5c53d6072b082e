"""What is said of a study at its beginning and at its end; the probes are made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.cli.render import show_answered
from tuner.client.advance import answered_before
from tuner.client.answered import Target, answered_of
from tuner.client.local import standing_text
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.study import Study, StudyState
from tuner.explain.known import answer
from tuner.store import open_store

FIRST = "sharding=full_shard,micro_batch_size=4"
SECOND = "sharding=ddp,micro_batch_size=4"


def finish(study: Study, targets: Sequence[Target], *, as_json: bool) -> int:
    return show_answered(answered_of(study, targets), as_json=as_json)


@pytest.fixture
def study(lab: SimpleNamespace) -> Study:
    return lab.study((FIRST, lab.ok(0.1, 20)), (SECOND, lab.oom(64)))


def test_the_answer_in_words(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(study, (), as_json=False) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for line in (
        "Answer",
        "  sharding                     full_shard",
        "  sync_each_batch              true",
        "  speed                        1,281 tokens/s per rank",
        "  memory                       20.0 MiB needed per rank, of ",
        "Why",
        "Knobs without effect here",
        "  tp_size is 1: ",
        "Launch   accelerate launch --config_file accelerate.yaml SCRIPT.py",
        "Cost     2 probes, 15 s, 30 device-seconds",
        "Study    st-0123456789ab",
    ):
        assert f"\n{line}" in out, out
    assert "\n* is the answer; > ran out of memory there\n" in out
    assert max(map(len, out.splitlines())) <= 160
    assert "\nWritten" not in out


@pytest.mark.parametrize("as_json", [False, True])
def test_when_nothing_fits_it_says_what_would_be_needed(
    lab: SimpleNamespace, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    spent = lab.study((FIRST, lab.oom(50)), (SECOND, lab.oom(64)))
    assert finish(spent, (), as_json=as_json) == 3
    assert capsys.readouterr().err.startswith("tuner: error: nothing that was probed fits: ")
    assert finish(replace(spent, state=StudyState.FAILED), (), as_json=as_json) == 3
    out, err = capsys.readouterr()
    assert err.startswith("tuner: error: nothing fits: ")
    assert err.count("\n") == 1
    assert "51.0 MiB" in err
    if as_json:
        assert json.loads(out)["best"] is None
    else:
        assert "No answer" in out


def test_when_no_probe_had_a_result_it_failed(
    lab: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    study = lab.study((FIRST, lab.crashed()))
    assert finish(study, (), as_json=False) == 1
    out, err = capsys.readouterr()
    assert err.startswith("tuner: error: study st-0123456789ab has no measured answer: ")
    assert "probe #1 crashed: rank 0 raised RuntimeError: no such kernel" in out


def test_other_versions_or_clusters_are_another_question(answered: Study) -> None:
    """What was measured with these versions here is no answer there, nor evidence."""
    question = answered.question
    newer = {**question.framework.versions, "accelerate": "1.14.0"}
    others = (
        replace(question, framework=framework("accelerate", newer)),
        replace(question, cluster=parse_cluster("cpu:4")),
    )
    with open_store() as store:
        for other in others:
            assert answered_before(store, other, answered.limits) is None
            asked = store.ask(other, answered.limits)
            assert asked.probes == ()
            assert asked.past == ()
            assert answer(asked).best is None


def test_the_same_question_on_the_same_terms_is_answered_from_the_store(answered: Study) -> None:
    with open_store() as store:
        stored = answered_before(store, answered.question, answered.limits)
        assert stored is not None
        assert stored.id == answered.id
        assert len(stored.probes) == len(answered.probes)
        assert store.study(answered.id).state is StudyState.DONE
        more = replace(answered.limits, max_probes=answered.limits.max_probes + 1)
        assert answered_before(store, answered.question, more) is None


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_predicted_is_shown_but_not_taken_for_measured(
    lab: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    path, spent = tmp_path / "a.yaml", "the budget of 11.2 s is spent"
    asked = lab.study()
    question = replace(asked.question, cluster=parse_cluster("8xa100-80gb"))
    ended = replace(asked, question=question, state=StudyState.DONE, reason=spent)
    target = Target(format_name="accelerate", path=path)
    assert finish(ended, (target,), as_json=as_json) == 1
    out, err = capsys.readouterr()
    assert err.startswith("tuner: error: study st-0123456789ab has no measured answer: ")
    assert spent in err
    assert err.endswith("What is suggested is predicted.\n")
    assert not path.exists()
    assert "\nWritten" not in out
    if as_json:
        assert json.loads(out)["best"]["provenance"] == "predicted"
    else:
        assert "\nPredicted, not measured\n" in out
        assert "\nAnswer" not in out


def test_json_is_the_whole_of_stdout(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    assert finish(study, (Target(format_name="accelerate", path=path),), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found)[:6] == ["study_id", "state", "workload", "cluster", "framework", "best"]
    assert found.keys() >= {"alternatives", "pareto", "dead_knobs", "space", "probes", "cost"}
    assert found.keys() >= {"explanation", "launch"}
    best = found["best"]
    assert (best["provenance"], best["fits"]) == ("measured", True)
    assert best["settings"]["sharding"] == "full_shard"
    for quantity in (best["memory"]["allocated_gib"], best["tokens_per_s_per_gpu"]):
        assert set(quantity) == {"value", "low", "high", "provenance"}
    assert found["probes"] == {"ok": 1, "oom": 1}
    assert "fsdp_version: 2" in path.read_text()


def test_a_study_says_which_it_is_and_what_it_has(answered: Study) -> None:
    text = standing_text(answered, answered=False).splitlines()
    assert text[0].startswith(f"study {answered.id}: tiny on cpu:2 (accelerate), global batch 8, ")
    assert text[1].startswith("continues from 2 probes since 20")
    text = standing_text(answered, answered=True).splitlines()
    assert text[1].startswith("answered from what is stored, 2 probes since 20")
    versions = answered.question.framework.versions
    assert all(f"{package} {version}" in text[2] for package, version in versions.items())
    running = replace(answered, state=StudyState.RUNNING, probes=())
    assert "another command is at it" in standing_text(running, answered=False)
