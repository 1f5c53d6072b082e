"""Predicted studies at the command line; dry runs are kept already, or cannot be made."""

import re

import pytest

from tests.questions import question_about
from tests.unit.api.studies import classes_of
from tuner.client.values import framework_of_files
from tuner.dryrun import dry_run_versions
from tuner.store import open_store

GIB = 2**30
SETTINGS = "sharding=full_shard,micro_batch_size=2"


@pytest.fixture
def question(tiny):
    """Of a GPU cluster that is not here."""
    return question_about(tiny, "2xa100-80gb", tokens=32, batch=16)


@pytest.fixture
def arguments(tiny):
    """The question as it is written."""
    asked = ["--model", tiny, "--cluster", "2xa100-80gb", "--sequence-length", "32"]
    return [*asked, "--global-batch-size", "16", "--fidelity", "predicted"]


@pytest.fixture
def kept(environment, question, dry_run_of):
    """Dry runs of all classes, in the default database."""
    with open_store() as store:
        for class_settings in classes_of(question):
            versions = dry_run_versions()
            store.keep_dry_run(dry_run_of(question, class_settings, GIB, GIB, versions=versions))


@pytest.fixture
def no_worker(monkeypatch):
    """No worker may be started."""

    def fail(*arguments):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("tuner.client.local.follow", fail)
    monkeypatch.setattr("tuner.cli.probe.follow", fail)


@pytest.mark.usefixtures("kept", "no_worker")
def test_what_is_kept_is_answered_without_a_worker(cli, arguments):
    found = cli("suggest", *arguments, "--json")
    assert found.code == 0, found.err
    best = found.json["best"]
    assert best["provenance"] == "predicted"
    assert best["memory"]["basis"] == "dry_run"
    assert set(best["memory"]["by_phase"]) == {"backward", "optimizer"}
    assert best["memory"]["device_gib"]["value"] > best["memory"]["allocated_gib"]["value"]
    assert found.json["state"] == "done"
    assert 1 <= found.json["probes"]["ok"] <= 3
    assert found.json["cost"]["gpu_s"] == 0
    text = " ".join(cli("suggest", *arguments).out.split())
    assert "predicted: memory by dry run, speed by arithmetic" in text
    assert "* is the answer" in text
    assert "device-seconds" not in text
    again = cli("suggest", *arguments, "--json")
    assert again.json == found.json
    assert "answered from what is stored" in again.err


@pytest.mark.usefixtures("no_torch", "no_worker")
def test_without_torch_the_answer_is_arithmetic_and_says_so(cli, arguments):
    found = cli("suggest", *arguments)
    assert found.code == 0, found.err
    text = " ".join(found.out.split())
    assert "predicted by arithmetic" in text
    assert "\nanswered by arithmetic: torch is not installed here" in found.err
    text = " ".join(cli("suggest", *arguments, "--why").out.split())
    assert "torch is not installed here, which a dry run needs" in text
    assert "No dry run was made" in text


@pytest.mark.usefixtures("no_torch", "no_worker")
def test_what_a_file_cannot_say_is_shown_beside_it(cli, arguments, tmp_path):
    written = tmp_path / "args.json"
    more = ["--framework", "trainer", "--adapter", "qlora", "--packing", "--knob", "sharding=ddp"]
    found = cli("suggest", *arguments, *more, "--write", f"trainer={written}")
    assert found.code == 0, found.err
    assert written.exists()
    assert "import torch" not in found.out
    as_json = cli("suggest", *arguments, *more, "--write", f"trainer={written}", "--json").json
    end = " ".join(found.out.partition("\nWritten ")[2].split())
    shows = f"cannot say: tuner export {as_json['study_id']} trainer shows how Next torchrun "
    assert shows in end
    whole = cli("suggest", *arguments, *more, "--write", f"trainer={written}", "--why")
    beside = whole.out.split("\nBeside ")[1].split("\nMemory")[0]
    assert beside.startswith(str(written))
    code = beside[beside.index("import torch") : beside.index("  Give the Trainer data_collator=")]
    assert {"get_peft_model", "load_in_4bit"} <= set(re.findall(r"\w+", code))
    compile(code, "pasted", "exec")
    assert code.strip() in "\n".join(as_json["beside"][str(written)])


@pytest.mark.usefixtures("no_torch", "no_worker")
def test_the_framework_is_that_of_the_file_that_is_wanted(cli, arguments, tmp_path):
    def of(*more):
        return cli("suggest", *arguments, *more, "--json").json["framework"]["name"]

    assert of() == of("--write", f"torch={tmp_path / 'tuned.py'}") == "torch"
    assert of("--write", f"trainer={tmp_path / 'trainer.json'}") == "trainer"
    config = f"accelerate={tmp_path / 'accelerate.yaml'}"
    assert of("--write", config) == "accelerate"
    assert of("--write", config, "--framework", "torch", "--knob", "tp_size=1") == "torch"
    assert framework_of_files(["trainer=a", "accelerate=b", "sbatch=c"]) is None
    assert framework_of_files(["deepspeed=a"]) is None  # which is not probed


@pytest.mark.usefixtures("no_torch", "no_worker")
def test_where_no_speed_is_known_what_fits_is_listed_and_no_file_is_written(
    cli, arguments, tmp_path
):
    cluster, written = tmp_path / "odd.toml", tmp_path / "accelerate.yaml"
    cluster.write_text(
        "nodes = 1\ngpus_per_node = 2\n[gpu]\nname = 'odd'\nmemory_bytes = 34000000000\n"
    )
    arguments += ["--cluster", str(cluster), "--knob", "tp_size=1"]
    arguments += ["--write", f"accelerate={written}"]
    found = cli("suggest", *arguments)
    assert found.code == 1
    assert found.err.splitlines()[-1] == (
        "tuner: error: no settings are known to be the fastest: time is unknown: the matrix rate"
        " of odd is not known"
    )
    text = " ".join(found.out.split())
    assert "gpu.dense_bf16_flops_per_s" in text
    assert "these fit; memory is" in text
    assert "tokens/s" not in text
    assert not written.exists()
    as_json = cli("suggest", *arguments, "--json")
    assert as_json.code == 1
    assert as_json.json["best"] is None
    assert as_json.json["alternatives"][0]["fits"] is True
    assert as_json.json["alternatives"][0]["provenance"] == "unknown"
    exported = cli("export", as_json.json["study_id"], "accelerate")
    assert exported.code == 1
    assert "no settings are known to be the fastest" in exported.err


@pytest.mark.usefixtures("kept", "no_worker")
def test_a_dry_run_of_given_settings(cli, arguments):
    found = cli("probe", *arguments, "--settings", SETTINGS)
    assert found.code == 0, found.err
    text = " ".join(found.out.split())
    assert " needed per GPU, of " in text
    assert "(2.02 GiB allocated)" in text
    assert "predicted: tensors by a dry run" in text
    assert "all_gather" in text
    as_json = cli("probe", *arguments, "--settings", SETTINGS, "--json").json["probe"]
    assert (as_json["number"], as_json["repetition"]) == (-1, 0)
    assert as_json["fits"] is True
    assert as_json["step_time_s"]["provenance"] == "predicted"
    assert cli("studies", "list", "--json").json["studies"][0]["state"] == "done"
    found = cli("probe", *arguments, "--settings", SETTINGS, "--memory-limit", "1GiB")
    assert found.code == 3
    assert "do not fit" in found.err
