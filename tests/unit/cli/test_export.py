"""``tuner export`` and ``--write``: files that are there, files that are merged into, and notes."""

from dataclasses import replace

import pytest
import yaml

from tests.models import TINY
from tests.questions import question_about
from tests.unit.made import crashed, ok, oom, stored
from tests.unit.opened import opened_by_optuna
from tuner.core.framework import framework
from tuner.core.script import read_script
from tuner.launchfiles import FORMATS
from tuner.model.shape import unnamed_model
from tuner.store import open_store

LINE = "\nFirst    tuner export {} template --write config.tuned.yaml\n"
MINE = "general:\n  project: mine  # stays\ntokens:\n  train_steps: 100\n"


def _question(name, cluster="2xl4", **versions):
    stack = framework(name, versions or None)
    return question_about(TINY, cluster, stack, tokens=32, batch=8)


@pytest.fixture
def script(keep, tmp_path):
    """An answered study of a script whose template is ``config.yaml``, and whose model is not
    named."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "config.yaml").write_text("micro: {micro_batch_size}\n")
    asked = _question("torch", "cpu:2")
    question = replace(
        asked,
        workload=replace(asked.workload, model=unnamed_model()),
        script=read_script(
            "train.py", arguments=["{template}"], template="config.yaml", folder=tmp_path
        ),
    )
    return keep(question, "sharding=ddp,micro_batch_size=4")


@pytest.fixture
def trainer(keep):
    """An answered study of the Trainer's."""
    return keep(_question("trainer"), "sharding=full_shard,micro_batch_size=4")


@pytest.fixture
def nanotron(keep):
    """An answered study of nanotron's."""
    question = _question("nanotron", nanotron="0.4")
    return keep(question, "sharding=zero1,micro_batch_size=2,gradient_accumulation_steps=2"
                          ",sync_each_batch=false")  # fmt: skip


@pytest.fixture
def keep(made):
    """Keeps a study with one probe in the default database."""

    def kept(question, settings):
        with open_store() as store:
            return stored(store, question, (settings, ok(0.1, 20)))

    return kept


def test_a_study_is_written_into_a_storage_of_optunas(cli, made, tmp_path):
    probes = (
        ("sharding=ddp,micro_batch_size=4", ok(1.0, 900)),
        ("sharding=full_shard,micro_batch_size=4", ok(2.0, 500)),
        ("sharding=ddp,micro_batch_size=1", oom(30_000)),
        ("sharding=ddp,micro_batch_size=2", crashed()),
    )
    with open_store() as store:
        study = stored(store, _question("trainer"), *probes)
    path = tmp_path / "storage.db"
    for _ in range(2):  # the second time in the place of the first
        found = cli("export", study.id, "optuna", "--into", str(path), "--json").json
    assert found == {"study_id": study.id, "format": "optuna", "path": str(path), "trials": 4}
    with opened_by_optuna(study.id, path) as read:
        assert [str(trial.state).partition(".")[2] for trial in read.trials] == [
            "COMPLETE", "COMPLETE", "PRUNED", "FAIL",
        ]  # fmt: skip
        assert [trial.user_attrs["outcome"] for trial in read.trials] == [
            "ok",
            "ok",
            "oom",
            "crashed",
        ]
        assert read.best_params["sharding"] == "ddp"
        assert read.best_params["micro_batch_size"] == 4
        assert read.trials[2].constraints["memory_over_limit_bytes"] > 0


def test_the_answer_is_merged_into_a_file(cli, nanotron, tmp_path):
    mine, out = tmp_path / "mine.yaml", tmp_path / "out.yaml"
    mine.write_text(MINE, encoding="utf-8")
    arguments = ["export", nanotron.id, "nanotron", "--into", str(mine)]
    assert cli(*arguments, "--write", str(out)).code == 0
    assert mine.read_text(encoding="utf-8") == MINE
    after = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert after["general"] == {"project": "mine"}
    assert after["tokens"]["train_steps"] == 100
    assert after["tokens"]["micro_batch_size"] == 2
    assert "# stays" in out.read_text(encoding="utf-8")
    shown = cli(*arguments).out
    assert shown == out.read_text(encoding="utf-8").replace(str(out), str(mine))  # where it goes
    assert cli(*arguments, "--write", str(mine)).code == 0
    assert mine.read_text(encoding="utf-8") == shown


def test_the_answer_is_put_into_a_file_of_a_program(cli, trainer, tmp_path):
    mine = tmp_path / "train.yml"
    text = "base_model: a/b  # mine\nmicro_batch_size: 64\nsequence_len: 128\nbf16: true\n"
    mine.write_text(text, encoding="utf-8")
    best = cli("export", trainer.id, "json").json["settings"]
    arguments = ["export", trainer.id, "axolotl", "--into", str(mine)]
    shown = cli(*arguments).out
    assert "base_model: a/b  # mine\n" in shown
    found = yaml.safe_load(shown)
    assert found["micro_batch_size"] == best["micro_batch_size"]
    assert found.get("gradient_accumulation_steps", 1) == best["gradient_accumulation_steps"]
    assert mine.read_text(encoding="utf-8") == text
    assert cli(*arguments, "--write", str(mine)).code == 0
    assert mine.read_text(encoding="utf-8") == shown
    assert cli(*arguments, "--json").json["text"] == shown
    refused = cli("export", trainer.id, "axolotl")
    assert (refused.code, "name it as --into" in refused.err) == (2, True)


def test_the_template_of_a_script_is_filled_in(cli, script, tmp_path):
    assert cli("export", script.id, "template").out == "micro: 4\n"
    path = tmp_path / "config.tuned.yaml"
    assert cli("export", script.id, "template", "--write", str(path)).code == 0
    assert path.read_text() == "micro: 4\n"
    again = cli("export", script.id, "template", "--write", str(path))
    assert (again.code, again.err.rstrip().endswith("is there; name another file")) == (2, True)
    shown = cli("export", script.id, "template", "--json").json
    assert (shown["format"], shown["text"]) == ("template", "micro: 4\n")
    said = cli("studies", "show", script.id).out
    assert LINE.format(script.id) in said
    assert said.index("First    ") < said.index("Next     ")
    (found,) = cli("studies", "list", "--json").json["studies"]
    assert found["model"] == "train.py"


def test_formats_are_printed_written_and_replaced_or_refused(cli, trainer, tmp_path):
    told = " ".join(cli("export", "--help").out.replace("│", " ").split())
    for name in FORMATS:
        assert name in told
        shown = cli("export", trainer.id, name)
        assert (shown.code == 0) is bool(shown.out)
        assert shown.code == 0 or f"format: got '{name}'" in shown.err
        if name in ("accelerate", "trainer", "json"):  # twice: a file of ours is replaced
            path = tmp_path / name
            for _ in range(2):
                assert cli("export", trainer.id, name, "--write", str(path)).code == shown.code
            usual, named = f"_file {FORMATS[name].file_name}", f"_file {path}"
            assert shown.code or path.read_text(encoding="utf-8") == shown.out.replace(usual, named)
            assert name != "accelerate" or usual in shown.out  # and it says where it is
    assert (
        "beside it: Load the model with dtype=torch.bfloat16"
        in cli("export", trainer.id, "trainer").err
    )
    found = cli("export", trainer.id, "trainer", "--json").json
    assert (found["study_id"], found["format"], found["path"]) == (trainer.id, "trainer", None)
    assert len(found["beside"]) == 2


def test_what_cannot_be_exported(cli, made, trainer, tmp_path):
    for arguments, message in (
        (["accelrate"], "format: got 'accelrate'; no such name; did you mean accelerate, "),
        (["accelerate", "--write", str(tmp_path)], "is a folder; name a file in it"),
        (["template"], "is for studies of a --script with a --template"),
    ):
        result = cli("export", trainer.id, *arguments)
        assert (result.code, result.out) == (2, "")
        assert message in result.err
    for measurement, code in ((oom(50), 3), (crashed(), 1)):
        with open_store() as store:
            cluster = "cpu:2" if code == 3 else "cpu:4"
            question = _question("accelerate", cluster)
            study = stored(store, question, ("sharding=ddp,micro_batch_size=2", measurement))
        result = cli("export", study.id, "accelerate", "--json")
        assert (result.code, result.json["error"]["exit_code"]) == (code, code)


def test_another_file_is_no_storage(cli, trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///ours.db"):
        (tmp_path / "text.db").write_text("a text of some length\n" * 100)
    before = (tmp_path / "text.db").read_text()
    for options, refused in (
        ((), "into: got 'nothing'"),
        (("--write", "a.db"), "write: got 'a.db'"),
        (("--into", "sqlite:///a.db"), "name the SQLite file alone"),
        (("--into", "ours.db"), "no storage of Optuna's"),
        (("--into", "text.db"), "cannot be written as a storage"),
    ):
        shown = cli("export", trainer.id, "optuna", *options)
        assert shown.code == 2
        assert refused in shown.err
    assert (tmp_path / "text.db").read_text() == before
