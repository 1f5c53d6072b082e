"""``tuner suggest --from``: the file's settings, the best, the difference, and the change."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import tuner
from tuner.catalog.versions import version_table
from tuner.cli.from_file import _difference
from tuner.client.from_file import left_out, patched, read_question
from tuner.client.request import read_here
from tuner.core.configuration import parse_settings
from tuner.core.framework import installed_versions
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.launchfiles import FORMATS, About, export

pytestmark = pytest.mark.usefixtures("no_torch")

NANOTRON = """\
# how we train
general:
  project: ours
model:
  model_config:
    is_llama_config: true
    hidden_size: 4096
    intermediate_size: 14336
    num_hidden_layers: 32
    num_attention_heads: 32
    num_key_value_heads: 8
    vocab_size: 128256
    max_position_embeddings: 8192
    tie_word_embeddings: false
parallelism:
  dp: 1
  tp: 8   # one node
  pp: 1
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
tokens:
  sequence_length: 4096
  micro_batch_size: 1
  batch_accumulation_per_replica: 64
  train_steps: 100
optimizer:
  zero_stage: 0
  accumulate_grad_in_fp32: true
  optimizer_factory:
    name: adamW
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(NANOTRON, encoding="utf-8")
    return path


def asked(path, *more):
    place = ("--cluster", "8xh100-80gb", "--fidelity", "predicted")
    return ("suggest", "--from", str(path), *place, *more)


def test_a_file_is_answered_shown_and_changed(cli, mine):
    shown = cli(*asked(mine, "--diff"))
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.partition("Your file: ")[2].split())
    assert "of nanotron batch 64 sequences = 1 x 64 x 1 data-parallel ranks" in said
    assert "today sharding=ddp, tp_size=8, " in said
    assert "beside it" not in said  # nanotron reduces once a step, whatever a file says
    assert " fits; " in said
    assert " Next the same command with --in-place, which writes it into " in " ".join(
        shown.out.split()
    )
    assert "tuner export" not in shown.out
    assert "% tokens/s, " in said
    assert "a predicted lead like this was real " in said
    assert "-  tp: 8   # one node\n" in shown.out
    assert "+  tp: " in shown.out
    assert mine.read_text(encoding="utf-8") == NANOTRON
    found = cli(*asked(mine, "--json")).json
    own, best = found["from"], found["best"]["settings"]
    assert own["today"]["fits"] is True
    assert own["today"]["settings"]["tp_size"] == 8
    assert own["changes"]["parallelism"]["tp"] == best["tp_size"]
    assert (own["written"], own["format"]) == (False, "nanotron")
    done = cli(*asked(mine, "--in-place"))
    assert f"wrote {mine}; as it was: {mine}.bak" in done.out.replace("\n", "")
    assert mine.with_name("mine.yaml.bak").read_text(encoding="utf-8") == NANOTRON
    text = mine.read_text(encoding="utf-8")
    kept = [line for line in NANOTRON.splitlines() if "#" in line or "train_steps" in line]
    assert all(line.replace("tp: 8", f"tp: {best['tp_size']}") in text for line in kept)
    values = yaml.safe_load(text)
    assert values["parallelism"]["tp"] == best["tp_size"]
    assert values["tokens"]["micro_batch_size"] == best["micro_batch_size"]
    again = cli(*asked(mine, "--in-place"))
    assert "the file has the fastest settings that fit already" in " ".join(again.out.split())
    assert mine.read_text(encoding="utf-8") == text
    assert not mine.with_name("mine.yaml.bak1").exists()


@pytest.mark.parametrize(
    ("needed", "said"), [(10.0, "the same memory"), (9.98, "-20.5 MiB"), (12.5, "+2.50 GiB")]
)
def test_a_small_difference_of_memory_is_not_said_to_be_none(needed, said):
    now, best = (
        SimpleNamespace(
            fits=True, tokens_per_s_per_gpu=UNKNOWN, needed_gib=SimpleNamespace(value=n)
        )
        for n in (10.0, needed)
    )
    assert _difference(now, best) == said


def test_no_copy_is_kept_where_none_is_wanted(cli, mine):
    mine.write_bytes(b"\xef\xbb\xbf" + NANOTRON.replace("\n", "\r\n").encode())
    assert cli(*asked(mine, "--in-place", "--no-backup")).code == 0
    assert [*mine.parent.glob("*.bak*")] == []
    data = mine.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf# how we train\r\n")
    assert data.count(b"\n") == data.count(b"\r\n")


def test_the_answer_stands_before_what_could_not_be_written(cli, mine, monkeypatch):
    renamed = Path.replace

    def refused(path, target):
        if target == mine:
            raise PermissionError(13, "Permission denied")
        return renamed(path, target)

    monkeypatch.setattr(Path, "replace", refused)
    done = cli(*asked(mine, "--in-place"))
    assert done.code == 1
    assert "difference +" in " ".join(done.out.split())
    assert "wrote" not in done.out
    assert f"{mine} cannot be written: Permission denied" in " ".join(done.err.split())
    assert [one.name for one in mine.parent.glob("*mine*")] == [mine.name]


def test_new_lines_end_as_those_of_the_file(tmp_path):
    text = "base_model: qwen3-8b\r\nsequence_len: 512\r\nadapter: lora\r\nbf16: true\r\n"
    path = tmp_path / "a.yml"
    path.write_bytes(text.encode())
    more = {"fidelity": "predicted"}
    question = read_question(str(path), None, {"cluster": "8xh100-80gb", **more})
    wanted = parse_settings("micro_batch_size=1,activation_checkpointing=full")
    made, _ = patched(question, question.request.question(installed_versions()), wanted)
    assert made == text + "gradient_checkpointing: true\r\n"


SHARDED = """\
model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
fsdp: full_shard auto_wrap
fsdp_config: {fsdp_version: 2}
bf16: true
"""


@pytest.mark.parametrize("more", ["max_length: 4096\n", "cutoff_len: 4096\nstage: sft\n"])
@pytest.mark.parametrize("said", ["", "gradient_checkpointing: true\n"])
def test_what_the_model_checkpoints_beside_fsdp_is_turned_off_where_it_is_said(
    tmp_path, more, said
):
    path = tmp_path / "args.yaml"
    path.write_text(SHARDED + more + said, encoding="utf-8")
    place = {"cluster": "8xa100-80gb"}
    question = read_question(str(path), None, {**place, "fidelity": "predicted"})
    assert question.asked.knobs["activation_checkpointing"] == "full"
    wanted = (
        "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=8,sync_each_batch=false"
    )
    asked = question.request.question(installed_versions())
    _, kept = patched(question, asked, parse_settings(f"{wanted},activation_checkpointing=full"))
    assert kept == {}
    _, changes = patched(question, asked, parse_settings(wanted))
    field = "disable_gradient_checkpointing" if "stage" in more else "gradient_checkpointing"
    assert changes == {field: "stage" in more}


@pytest.mark.parametrize("more", ["max_length: 4096\n", "cutoff_len: 4096\nstage: sft\n"])
def test_a_program_keeps_the_deepspeed_json_that_it_names(tmp_path, more):
    path = tmp_path / "args.yaml"
    text = SHARDED.partition("fsdp:")[0] + "bf16: true\ndeepspeed: ds.json\n"
    path.write_text(text + more, encoding="utf-8")
    engine = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'
    (tmp_path / "ds.json").write_text(engine, encoding="utf-8")
    given = {"cluster": "8xa100-80gb", "fidelity": "predicted"}
    question = read_question(str(path), None, given)
    asked = question.request.question(installed_versions())
    wanted = "sharding=full_shard,micro_batch_size=4,gradient_accumulation_steps=4"
    _, changes = patched(question, asked, parse_settings(f"{wanted},sync_each_batch=false"))
    assert "per_device_train_batch_size" in changes
    assert "deepspeed" not in changes


def test_a_fused_loss_that_the_file_has_stays_among_what_is_looked_at(tmp_path):
    path = tmp_path / "ax.yaml"
    fused = "liger_fused_linear_cross_entropy: true\n"
    path.write_text(AXOLOTL_FULL + fused, encoding="utf-8")
    place = {"cluster": "8xa100-80gb"}
    question = read_question(str(path), None, {**place, "fidelity": "predicted"})
    assert question.request.knobs.fused_loss == (True, False)


FSDP = """\
distributed_type: FSDP
num_machines: 1
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Qwen2DecoderLayer
"""


def test_a_file_of_one_node_leaves_out_what_needs_several(tmp_path):
    beside = {
        "model": "qwen2.5-0.5b", "cluster": "8xh100-80gb", "framework": "accelerate",
        "sequence_length": 1024, "global_batch_size": 64,
    }  # fmt: skip

    def shardings(text, **said):
        path = tmp_path / "accelerate.yaml"
        path.write_text(text, encoding="utf-8")
        found = read_question(str(path), None, {**beside, **said, "fidelity": "predicted"})
        return set(found.request.knobs.sharding)

    one = shardings(FSDP)
    assert one == {"ddp", "shard_grad_op", "full_shard"}
    two = FSDP.replace("machines: 1", "machines: 2").replace("processes: 8", "processes: 16")
    assert shardings(two, cluster="2x8xh100-80gb") == one | {"hybrid_shard"}


def test_what_the_file_says_is_not_said_otherwise(cli, mine):
    for more, said in (
        (("--sequence-length", "2048"), "sequence_length: got 2048; the file says 4096"),
        (("--global-batch-size", "32"), "global_batch_size: got 32; the file says 64"),
        (("--model", "gpt2"), "model: got 'gpt2'; the file says which"),
        (("--optimizer", "sgd"), "optimizer: got 'sgd'; the file says adamw: change it there"),
    ):
        result = cli(*asked(mine, *more))
        assert (result.code, said in result.err) == (2, True), result.err


AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch
bf16: true
gradient_checkpointing: true
"""
AXOLOTL_FULL = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 8192
micro_batch_size: 4
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, transformer_layer_cls_to_wrap: LlamaDecoderLayer}
"""
SYNCED = """\
accelerator_config:
  gradient_accumulation_kwargs:
    sync_each_batch: true
"""


@pytest.mark.parametrize(("more", "each"), [("", False), (SYNCED, True)])
def test_of_a_tie_the_file_is_changed_least(cli, tmp_path, more, each):
    path = tmp_path / "ax.yaml"
    path.write_text(AXOLOTL + more, encoding="utf-8")
    packages = version_table().packages
    stated = [
        f"{one}={packages[one].newest}" for one in version_table().frameworks["trainer"].oldest
    ]
    versions = [word for one in stated for word in ("--framework-version", one)]
    place = ("--cluster", "2xrtx-4090", "--fidelity", "predicted", *versions)
    found = cli("suggest", "--from", str(path), *place, "--json").json
    own = found["from"]
    assert own["today"]["settings"]["sync_each_batch"] is each
    assert own["changes"]
    assert "accelerator_config" not in own["changes"]
    assert found["best"]["settings"]["sync_each_batch"] is False  # the answer itself


def test_where_nothing_fits_nothing_is_to_be_started(cli, tmp_path):
    path = tmp_path / "ax.yaml"
    text = AXOLOTL.replace("qlora", "lora").replace("load_in_4bit: true\n", "")
    path.write_text(text.replace("2048", "8192"), encoding="utf-8")
    shown = cli(
        "suggest", "--from", str(path), "--cluster", "2xrtx-4090", "--fidelity", "predicted"
    )
    assert (shown.code, "Nothing fits: " in shown.out) == (3, True), shown.err
    assert "sharding must be ddp with an adapter" in " ".join(shown.out.split())
    assert "What the file says is changed there." in shown.out
    other = cli("suggest", "--from", str(path), "--adapter", "qlora", "--cluster", "2xrtx-4090")
    assert "adapter: got 'qlora'; the file says lora: change it there" in other.err
    assert "axolotl train" not in shown.out


def test_what_may_run_out_of_memory_is_not_said_to_fit(cli, tmp_path):
    path = tmp_path / "ax.yaml"
    text = AXOLOTL_FULL.partition("fsdp")[0]
    text = text.replace("size: 4", "size: 1")
    path.write_text(text.replace("steps: 4", "steps: 8"), encoding="utf-8")
    place = (str(path), "--cluster", "1xh200")
    needed = cli("check", *place, "--json").json["memory"]["needed_gib"]
    limit = (needed["value"] + needed["high"]) / 2
    place = (*place, "--memory-limit", f"{limit}GiB")
    asked = ("suggest", "--from", *place, "--fidelity", "predicted")
    shown = cli(*asked)
    said = " ".join(shown.out.split())
    ends = f"({needed['low']:.1f} to {needed['high']:.1f})"
    own = said.partition("Your file: ")[2]
    assert " fits" not in own
    assert f"may run out of memory: the limit is {limit:.1f} GiB; " in own
    assert f"{ends} needed, predicted" in own
    assert "the file has the fastest settings that may fit already" in own
    assert cli(*asked, "--json").json["from"]["today"]["fits_surely"] is False
    checked = cli("check", *place)
    assert (checked.code, "perhaps: it may run out of memory" in checked.out) == (0, True)


def exported(tmp_path, format_name, cluster="8xh100-80gb"):
    asked = {"cluster": cluster, "model": "qwen2.5-0.5b", "sequence_length": 1024}
    stack = {"framework": "accelerate", "precision": "bf16_mixed"}
    request = read_here({**asked, **stack, "global_batch_size": 64})
    question = request.question(installed_versions())
    settings = parse_settings(
        "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=8"
    )
    about = About(study_id="st-0123456789ab", date="2026-01-15", provenance=Provenance.PREDICTED)
    path = tmp_path / FORMATS[format_name].file_name
    path.write_text(export(format_name, question, settings, about), encoding="utf-8")
    return path


def test_what_only_the_header_says_is_free(cli, tmp_path):
    path = exported(tmp_path, "accelerate")
    found = read_question(str(path), None, {"fidelity": "predicted"})
    assert found.request.knobs.micro_batch_size is None
    assert found.asked.knobs["micro_batch_size"] == 1  # as it is today
    assert found.request.cluster.name == "8xh100-80gb"
    shown = cli("suggest", "--from", str(path), "--fidelity", "predicted")
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.partition("Your file: ")[2].split())
    assert "the answer needs micro_batch_size=" in said
    assert ", which no field of it says" in said
    assert "fit already " not in said.replace("already, of what it says", "")


def test_a_file_that_is_started_by_itself_is_answered(cli, tmp_path):
    path = exported(tmp_path, "env")
    shown = cli("suggest", "--from", str(path), "--fidelity", "predicted")
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.partition("Your file: ")[2].split())
    assert "is of env, which is not changed: export the answer" in said


def test_arguments_that_name_their_study_are_answered_as_they_are_checked(cli, tmp_path):
    path = tmp_path / "args.json"
    job = ("--model", "llama-3.1-8b", "--sequence-length", "4096", "--global-batch-size", "32")
    place = ("--cluster", "4xa100-80gb", "--fidelity", "predicted")
    made = cli("suggest", *job, *place, "--framework", "trainer", "--write", f"trainer={path}")
    assert made.code == 0, made.err
    shown = cli("suggest", "--from", str(path), *place, "--why")
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.split())
    assert "best the file has the fastest settings that fit already" in said
    assert f"SCRIPT.py {path} More" in said  # it, and no export of the same
    assert "left out tp_size=2: no field of the file can be made to say it" in said
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("tuner st-", "tuner st-0"), encoding="utf-8")
    other = cli("suggest", "--from", str(path), *place)
    assert "which the file names, is not in this database" in other.err


def test_values_that_a_file_cannot_say_are_told(tmp_path):
    path = tmp_path / "ax.yaml"
    path.write_text(AXOLOTL_FULL, encoding="utf-8")
    asked = {"cluster": "8xa100-80gb", "fidelity": "predicted"}
    found = {"activation_checkpointing": ["every_2"], "sharding": ["ddp"], "tp_size": [2, 4]}
    for knobs, left in (({}, found), ({"sharding": ["full_shard"]}, {**found, "sharding": []})):
        question = read_question(str(path), None, {**asked, "knobs": knobs})
        job = question.request.question(installed_versions())
        expected = {name: values for name, values in left.items() if values}
        assert left_out(job, question.restricted) == expected


def test_what_was_asked_for_beside_a_file_and_is_none_of_its_values_is_not_passed_over(tmp_path):
    path = tmp_path / "ax.yaml"
    path.write_text(AXOLOTL_FULL, encoding="utf-8")
    asked = {"cluster": "8xa100-80gb", "fidelity": "predicted", "knobs": {"cpu_offload": [True]}}
    question = read_question(str(path), None, asked)
    job = question.request.question(installed_versions())
    best = parse_settings(
        "sharding=full_shard,cpu_offload=true,micro_batch_size=4,gradient_accumulation_steps=4"
    )
    with pytest.raises(tuner.UsageError, match=r"cpu_offload=true cannot be put into it: set it"):
        patched(question, job, best)


def test_python_says_nothing_otherwise_than_the_file(environment, tmp_path):
    path = tmp_path / "ax.yaml"
    path.write_text(AXOLOTL.replace("adamw_torch", "sgd"), encoding="utf-8")
    for said in ({"optimizer": "adamw"}, {"framework": "torch"}):
        with pytest.raises(tuner.UsageError, match="the file says"):
            tuner.suggest(from_file=path, cluster="2xrtx-4090", fidelity="predicted", **said)
    asked = {"cluster": "2xrtx-4090", "fidelity": "predicted", "settings": "micro_batch_size=4"}
    with pytest.raises(tuner.UsageError, match=r"settings: .*the file says micro_batch_size=2"):
        tuner.suggest(from_file=path, **asked)
    with pytest.raises(tuner.UsageError, match=r"settings: .*is for from_file"):
        tuner.suggest(model="stories15m", global_batch_size=8, sequence_length=128, **asked)


@pytest.mark.parametrize(
    ("said", "cluster", "precision"),
    [("no", "cpu:2", "fp32"), ("bf16", "cpu:2", "bf16_mixed"), ("no", "2xh100-80gb", "bf16")],
)
def test_weights_that_a_file_leaves_open_are_the_usual_ones(tmp_path, said, cluster, precision):
    path = tmp_path / "accelerate.yaml"
    text = f"distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: '{said}'\n"
    path.write_text(text, encoding="utf-8")
    beside = {"model": "stories15m", "sequence_length": 128, "global_batch_size": 8}
    given = {**beside, "cluster": cluster, "framework": "accelerate", "fidelity": "predicted"}
    asked = read_question(str(path), None, given).request
    assert asked.question(installed_versions()).workload.precision == precision
    stated = read_question(str(path), None, {**given, "precision": precision}).request
    assert stated == asked


def test_what_is_done_today_beside_a_file_is_said(cli, tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(FSDP, encoding="utf-8")
    bare = cli("suggest", "--from", str(path), "--fidelity", "predicted")
    assert bare.code == 2
    for option in ("model", "global-batch-size", "sequence-length"):
        assert f"--{option} is required: the file does not say it" in bare.err
    needed = ("--cluster", "8xh100-80gb", "--fidelity", "predicted", "--framework", "accelerate")
    of = ("--model", "qwen2.5-0.5b", "--sequence-length", "1024", "--global-batch-size", "64")
    today = "micro_batch_size=2,sync_each_batch=false,activation_checkpointing=full"
    asked = ("suggest", "--from", str(path), *needed, *of)
    shown = cli(*asked, "--settings", today, "--in-place")
    said = " ".join(shown.out.partition("Your file: ")[2].split())
    assert "today sharding=full_shard, micro_batch_size=2, " in said
    assert "difference +" in said
    assert "activation_checkpointing=none, which no field of it says" in said
    assert "activation_checkpointing is taken as none" not in said
    assert path.read_text(encoding="utf-8") == FSDP  # the script turns it on, and off
    unsaid = " ".join(cli(*asked).out.split())
    assert "--settings micro_batch_size=N,sync_each_batch=true|false" in unsaid
    refused = cli("suggest", *of, "--settings", today)
    assert (refused.code, "needs --from FILE" in refused.err) == (2, True)
