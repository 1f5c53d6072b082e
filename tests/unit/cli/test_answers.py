"""What is said of a study at its beginning and at its end; the probes are made by hand."""

import json
from dataclasses import replace

import pytest

from tuner.cli.options import SuggestAsked
from tuner.cli.render import show_asked
from tuner.client.answered import Target, answered_of
from tuner.core.cluster import parse_cluster
from tuner.core.study import StudyState

FIRST = "sharding=full_shard,micro_batch_size=4"
SECOND = "sharding=ddp,micro_batch_size=4"


def finish(study, targets, *, as_json):
    return show_asked(SuggestAsked(json=as_json), answered_of(study, targets))


@pytest.fixture
def study(lab):
    return lab.study((FIRST, lab.ok(0.1, 20)), (SECOND, lab.oom(64)))


def test_the_answer_in_brief(study, capsys):
    ended = replace(study, reason="the budget of 2 probes is spent")
    assert finish(ended, (), as_json=False) == 0
    out, err = capsys.readouterr()
    assert err == ""
    table, answer = out.split("\n\nAnswer ")
    assert "* is the answer; the others by speed; > ran out of memory there" in table
    for line in (
        "  sharding=full_shard, micro_batch_size=4, gradient_accumulation_steps=1,\n",
        # on which the rule of thumb and a single change turn
        "         sync_each_batch=true, activation_checkpointing=none\n",
        "         1,281 tokens/s per rank (",
        "         20.0 MiB needed per rank, of ",
        "         measured",
        "Why      Nothing else that fits was timed to the end.",
        "Sure?    ",
        "Next     accelerate launch --config_file accelerate.yaml SCRIPT.py",
        "More     tuner studies show st-0123456789ab --why",
        "Cost     2 probes, 15 s, 30 device-seconds",
        "Ended    the budget of 2 probes is spent",
    ):
        assert f"{line}" in answer, out
    assert "\nWritten" not in out
    assert len(answer.splitlines()) <= 25
    assert len(answer.split()) <= 180
    assert "Knobs without effect" not in out


def test_all_that_is_known_and_the_answer_alone(study, capsys):
    assert show_asked(SuggestAsked(why=True), answered_of(study, ())) == 0
    out = capsys.readouterr().out
    assert "\nKnobs without effect here\n  tp_recompute_allgather is false: " in out
    assert "\nMemory\n  must be free " in out
    assert out.count("nvidia-smi") <= 1
    assert out.index("Knobs without effect") < out.index("\nAnswer ")  # which is last
    assert show_asked(SuggestAsked(quiet=True), answered_of(study, ())) == 0
    assert capsys.readouterr().out.startswith("Answer ")


@pytest.mark.parametrize("as_json", [False, True])
def test_when_nothing_fits_it_says_what_would_be_needed(lab, capsys, as_json):
    spent = lab.study((FIRST, lab.oom(50)), (SECOND, lab.oom(64)))
    assert finish(spent, (), as_json=as_json) == 3
    out, err = capsys.readouterr()
    said = err if as_json else out.replace("\n", " ")
    assert "othing that was probed fits: " in said
    assert ".." not in said
    assert finish(replace(spent, state=StudyState.FAILED), (), as_json=as_json) == 3
    out, err = capsys.readouterr()
    if as_json:
        assert err.startswith("tuner: error: nothing fits: ")
        assert err.count("\n") == 1
        assert json.loads(out)["best"] is None
        assert {one["fits"] for one in json.loads(out)["ways_out"]} == {True}
    else:  # it is an answer
        assert err == ""
        assert "Nothing fits: " in out
        assert "51.0 MiB" in out
        assert "--optimizer adamw_8bit" in out
        assert "These train something else: --optimizer (with 8-bit optimizer state)" in out


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_predicted_is_shown_but_not_taken_for_measured(lab, tmp_path, capsys, as_json):
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
        assert "\nPredicted, not measured\nAnswer " in out


def test_json_is_the_whole_of_stdout(study, tmp_path, capsys):
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
