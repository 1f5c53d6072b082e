"""``tuner check``: predictions by arithmetic, and probes that are in the database already."""

from dataclasses import replace

import pytest

import tuner
from tests.unit.made import MISCOUNTED, ok, oom, stored, verdict
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework, installed_versions
from tuner.core.measurement import Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Question
from tuner.launchfiles import FORMATS, About, export
from tuner.space import check_settings
from tuner.store import open_store

ABOUT = About(study_id="st-1", date="2026-01-15", provenance=Provenance.MEASURED)
ZERO3 = "zero_optimization: {stage: 3}\ntrain_micro_batch_size_per_gpu: 2\n"
AXOLOTL = """\
base_model: meta-llama/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: adamw_torch
bf16: true
"""
BEST = "sharding=ddp,micro_batch_size=4"


@pytest.fixture
def zero3(tmp_path, environment):
    """A file of DeepSpeed's, and what it does not say."""
    path = tmp_path / "ds.yaml"
    path.write_text(ZERO3)
    return [
        "check", str(path), "--model", "llama-2-7b", "--sequence-length", "4096",
        "--global-batch-size", "16", "--dry-runs", "none", "--cluster",
    ]  # fmt: skip


def test_it_fits_or_does_not(cli, zero3):
    fits = cli(*zero3, "8xh200")
    assert (fits.code, fits.err) == (0, "")
    assert "llama-2-7b on 8xh200 (deepspeed), global batch 16" in fits.out
    assert "yes" in fits.out
    assert "no published run of DeepSpeed" in " ".join(fits.out.split())
    of_torch = cli(*zero3, "8xh200", "--framework", "torch")
    assert "llama-2-7b on 8xh200 (torch), global batch 16" in of_torch.out
    does_not = cli(*zero3, "8xl4")
    assert does_not.code == 3
    assert does_not.err.startswith("tuner: error: this does not fit: needs ")
    assert "no: needs" in does_not.out


FLAGGED = """\
{distributed_type: FSDP, num_processes: 8, mixed_precision: bf16, fsdp_config: {fsdp_version: 2,
fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_activation_checkpointing: true}}
"""
LLAMA = ("--model", "llama-3.1-8b", "--dry-runs", "none", "--global-batch-size", "64",
         "--cluster", "8xh100-80gb", "--sequence-length")  # fmt: skip
MICRO = ("--settings", "micro_batch_size=1,sync_each_batch=true", "--framework-version")


@pytest.fixture
def flagged(tmp_path, environment):
    """A check of accelerate's option of checkpointing; a length is to follow."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(FLAGGED)
    return ["check", str(path), *LLAMA]


def test_arguments_that_an_older_trainer_passes_over_are_refused(cli, tmp_path, environment):
    path = tmp_path / "training_args.json"
    path.write_text(
        '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": true, "fsdp":'
        ' "full_shard auto_wrap", "fsdp_config": {"version": 2, "reshard_after_forward": true}}'
    )
    asked = ["check", str(path), *LLAMA, "4096", "--framework", "trainer", "--framework-version"]
    old, new = (cli(*asked, f"transformers={release}") for release in ("4.57.6", "5.0.0"))
    assert (old.code, new.code) == (2, 0)
    assert "transformers 4.57.6 passes over the arguments that choose FSDP2" in old.err


def test_what_an_older_option_of_checkpointing_keeps_is_counted(cli, flagged):
    releases = ("1.15.0", "1.14.0")
    whole, parts = (cli(*flagged, "32768", *MICRO, f"accelerate={one}") for one in releases)
    assert (whole.code, parts.code) == (0, 3)
    assert "checkpoints each part of a layer" in " ".join(parts.out.split())


def test_an_option_of_checkpointing_that_loses_the_random_state_is_told(cli, flagged):
    lora = ("--adapter", "lora", "--lora-dropout")
    for dropout, is_told in (("0.05", True), ("0", False)):
        done = cli(*flagged, "4096", *MICRO, "accelerate=1.15.0", *lora, dropout)
        assert done.code == 0, done.err
        assert ("with the adapter's dropout backward" in " ".join(done.out.split())) is is_told


def test_what_trains_something_else_has_an_exit_code_of_its_own(cli, zero3, database):
    planted = verdict(
        "sharding=full_shard,gradient_accumulation_steps=3", wrong=True, model_type="llama",
        knob="sync_each_batch", versions=installed_versions(),
    )  # fmt: skip
    with open_store(f"sqlite:///{database}") as store:
        store.keep_check(planted)
    accumulates = [*zero3, "8xh200", "--framework", "torch"]
    accumulates += ["--settings", "gradient_accumulation_steps=4"]
    accumulates[accumulates.index("--sequence-length") + 1] = "1024"
    accumulates[accumulates.index("--global-batch-size") + 1] = "64"
    wrong = cli(*accumulates)
    assert wrong.code == 4
    assert wrong.err.startswith(
        "tuner: error: this trains something else: sync_each_batch=true trains something else"
    )
    assert "yes" in wrong.out  # it fits
    plain = cli(*accumulates, "--json")
    assert (plain.code, plain.json["fits"]) == (4, True)
    assert plain.json["trains_wrongly"].endswith("instead of 6 (a small llama on 2 ranks)")
    assert cli(*accumulates, "--memory-limit", "1GiB").code == 3  # so it was before
    accumulates[-1] = "gradient_accumulation_steps=1"
    accumulates[accumulates.index("--global-batch-size") + 1] = "16"
    right = cli(*accumulates, "--json")
    assert (right.code, right.json["trains_wrongly"]) == (0, "")  # nothing is accumulated


@pytest.fixture
def exported(answered, question, tmp_path):
    """What was found to be second, as a file of the Trainer's."""
    settings = check_settings(question, parse_settings(BEST))
    path = tmp_path / "tuned.json"
    path.write_text(export("json", question, settings, ABOUT))
    return ["check", str(path), "--dry-runs", "none"]


def test_what_was_measured_goes_before_what_is_predicted(cli, exported, answered):
    found = cli(*exported, "--json")
    assert found.code == 0, found.err
    seen = found.json
    assert seen["provenance"] == "measured"
    assert seen["seen"]["study_id"] == answered.id
    assert seen["memory"]["allocated_gib"]["value"] == pytest.approx(40 / 1024)
    assert seen["memory"]["needed_gib"]["value"] >= seen["memory"]["allocated_gib"]["value"]
    assert seen["step_time_s"]["provenance"] == "measured"
    assert seen["prediction"]["provenance"] == "predicted"
    text = cli(*exported).out
    assert f"of study {answered.id}" in text
    assert "measured" in text
    less = cli(*exported, "--memory-limit", "30MiB", "--json")
    assert less.code == 3
    assert less.json["reason"]


@pytest.mark.parametrize("stack", ["accelerate", "trainer"])
def test_each_exported_file_is_checked_without_options(cli, made, question, tmp_path, stack):
    asked = replace(question, framework=framework(stack))
    with open_store() as store:
        study = stored(store, asked, (f"{BEST},sync_each_batch=false", ok(0.1, 20)))
    seen = set()
    for name, known in FORMATS.items():
        path = tmp_path / known.file_name
        written = cli("export", study.id, name, "--write", str(path))
        if written.code:
            assert "ask again" in written.err
            continue
        found = cli("check", str(path), "--dry-runs", "none", "--json")
        assert found.code == 0, found.err
        assert found.json["seen"]["study_id"] == study.id
        seen.add(name)
    assert {*FORMATS} - seen <= {"nanotron", "torchtitan", "deepspeed"}


@pytest.mark.usefixtures("no_torch")
def test_python_reads_the_same_files(answered, question, tmp_path):
    text = export("accelerate", question, check_settings(question, parse_settings(BEST)), ABOUT)
    path = tmp_path / "a.yaml"
    path.write_text(text)
    for file in (path, str(path), text):
        found = tuner.check(file, dry_runs="none")
        assert found.seen.study_id == answered.id
        assert found.case.settings.micro_batch_size == 4
    predicted = tuner.predict(from_file=text, dry_runs="none", settings="micro_batch_size=2")
    assert predicted.settings.micro_batch_size == 2
    with pytest.raises(tuner.UsageError, match="from_file"):
        tuner.predict([], from_file=text)
    with pytest.raises(TypeError, match="sequence_lenght"):
        tuner.check(text, sequence_lenght=5)
    asked = {"cluster": "8xa100-80gb", "fidelity": "predicted", "max_probes": 1}
    best = tuner.suggest(from_file=AXOLOTL, **asked).best
    assert best.settings.sharding == "ddp"
    assert best.provenance == "predicted"
    with pytest.raises(tuner.UsageError, match="the file says 2048"):
        tuner.suggest(from_file=AXOLOTL, sequence_length=4096, **asked)


def test_a_probe_that_trained_something_else_is_no_want_of_memory(cli, made, question, tmp_path):
    wrong = Measurement(outcome=Outcome.WRONG_RESULT, detail=MISCOUNTED, wall_s=1.0)
    settings = check_settings(question, parse_settings(BEST))
    path = tmp_path / "tuned.json"
    path.write_text(export("json", question, settings, ABOUT))
    with open_store() as store:
        stored(store, question, (BEST, wrong))
    found = cli("check", str(path), "--dry-runs", "none", "--json")
    assert found.code == 4
    assert MISCOUNTED in found.json["trains_wrongly"]
    assert found.json["fits"] is True
    assert "this trains something else: such settings ended as wrong result" in found.err


def test_studies_of_other_knobs_count_too(cli, made, question, tmp_path):
    fewer = Question(
        workload=question.workload, cluster=question.cluster, framework=question.framework,
        knobs={"sharding": ("ddp",)},
    )  # fmt: skip
    with open_store() as store:
        study = stored(store, fewer, (BEST, oom(50)))
    path = tmp_path / "tuned.json"
    path.write_text(export("json", question, check_settings(question, parse_settings(BEST)), ABOUT))
    found = cli("check", str(path), "--dry-runs", "none", "--memory-limit", "50MiB", "--json")
    assert found.code == 3, found.out
    assert found.json["seen"]["study_id"] == study.id
    assert found.json["seen"]["outcome"] == "oom"
    other = cli("check", str(path), "--dry-runs", "none", "--cluster", "2xa100-80gb", "--json")
    assert other.code == 0
    assert other.json["seen"] is None
    assert other.json["cluster"] == parse_cluster("2xa100-80gb").as_dict()


def test_a_study_that_is_not_here_is_told(question, environment):
    text = export("trainer", question, check_settings(question, parse_settings(BEST)), ABOUT)
    with pytest.raises(tuner.UsageError, match=f"study {ABOUT.study_id}, .* not in this database"):
        tuner.check(text, dry_runs="none")


def test_a_number_of_gpus_is_told_as_one(cli):
    asked = ("--model", "qwen2.5-0.5b", "--cluster", "8xh100-80gb", "--framework", "deepspeed")
    sizes = ("--global-batch-size", "16", "--sequence-length", "1024")
    found = cli("predict", *asked, *sizes, "--settings", "micro_batch_size=1,cp_size=2")
    assert (found.code, "cp_size: got 2; " in found.err) == (2, True), found.err
