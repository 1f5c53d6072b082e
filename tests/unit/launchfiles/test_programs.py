"""axolotl's, LLaMA-Factory's and TRL's files: what is read of them, and what an answer changes."""

import json
from dataclasses import replace

import pytest
import yaml

from tuner.client.files import asked_of, case_of
from tuner.client.from_file import patched, read_question
from tuner.client.values import NotCoveredError
from tuner.core.configuration import Settings, Sharding, parse_settings
from tuner.core.framework import installed_versions
from tuner.errors import UsageError
from tuner.launchfiles.fields import Fields
from tuner.launchfiles.files import open_file
from tuner.launchfiles.fine_tuning import _targets

AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B  # the model
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_linear: true
sequence_len: 2048
sample_packing: true
datasets:
   - path: me/mine   # indented by three
wandb_project:

micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
lora_mlp_kernel: true
"""
FULL = """\
base_model: Qwen/Qwen3-8B
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
optimizer: adamw_torch_fused
attn_implementation: sdpa
sample_packing: true
plugins:
  - my.Plugin
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: true  # ZeRO 3
  activation_checkpointing: true
"""
LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
stage: sft
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
optim: adamw_torch
"""
TRL = """\
model_name_or_path: Qwen/Qwen3-8B
use_peft: true
max_length: 1024
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
use_liger_kernel: false
"""
PLACE = {"cluster": "8xa100-80gb"}
QLORA = {
    "method": "qlora", "rank": 32, "alpha": 16, "dropout": 0.0, "target_modules": ["all-linear"],
    "double_quant": True,
}  # fmt: skip
LORA = {"method": "lora", "rank": 16}


@pytest.fixture
def written(tmp_path):
    def write(text, name="train.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "format_name", "settings", "facts"),
    [
        pytest.param(
            AXOLOTL,
            "axolotl",
            "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false,"
            "activation_checkpointing=full",
            {"adapter": QLORA, "optimizer": "paged_adamw_8bit", "precision": "bf16_mixed",
             "global_batch_size": 64, "packing": {"variant": "varlen"}, "framework": "trainer",
             "sequence_length": 2048},
        ),
        (
            FULL,
            "axolotl",
            "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=2,"
            "sync_each_batch=false,activation_checkpointing=full",
            {"adapter": None, "optimizer": "adamw_fused", "precision": "bf16_mixed",
             "global_batch_size": 16, "packing": {"variant": "position_ids"}},
        ),
        (
            LLAMA_FACTORY,
            "llama-factory",
            "sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=8,sync_each_batch=false,"
            "activation_checkpointing=full",
            {"adapter": {**LORA, "alpha": 32, "dropout": 0.0,
                         "target_modules": ["q_proj", "v_proj"]},
             "global_batch_size": 64, "packing": None, "optimizer": "adamw",
             "precision": "bf16_mixed", "sequence_length": 1024},
        ),
        (
            TRL,
            "trl",
            "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false,"
            "activation_checkpointing=full",
            {"adapter": {**LORA, "alpha": 32, "dropout": 0.05, "target_modules": ["all-linear"]},
             "global_batch_size": 32, "packing": {"variant": "varlen"},
             "optimizer": "adamw_fused", "precision": "bf16_mixed"},
        ),
    ],
)  # fmt: skip
def test_a_file_is_a_question_and_its_present_settings(written, text, format_name, settings, facts):
    found = open_file(written(text)).found
    assert found.format_name == format_name
    asked = asked_of(found, PLACE)
    assert {name: asked.arguments[name] for name in facts} == facts
    assert case_of(found, PLACE).settings == parse_settings(settings)
    batch = facts["global_batch_size"]
    micro, steps = (asked.knobs[one] for one in ("micro_batch_size", "gradient_accumulation_steps"))
    assert asked.made == f"{micro} x {steps} x 8 data-parallel ranks"
    assert micro * steps * 8 == batch


@pytest.mark.parametrize(
    ("text", "best", "lines"),
    [
        (
            AXOLOTL,
            "micro_batch_size=4,gradient_accumulation_steps=2,sync_each_batch=false",
            {"micro_batch_size: 2": "micro_batch_size: 4",
             "gradient_accumulation_steps: 4": "gradient_accumulation_steps: 2",
             "gradient_checkpointing: true": "gradient_checkpointing: false"},
        ),
        (
            FULL,
            "sharding=shard_grad_op,micro_batch_size=2,activation_checkpointing=none,"
            "fused_loss=true",
            {"micro_batch_size: 1":
                 "micro_batch_size: 2\nliger_fused_linear_cross_entropy: true",
             "gradient_accumulation_steps: 2": "gradient_accumulation_steps: 1",
             "  - my.Plugin": "- my.Plugin\n- axolotl.integrations.liger.LigerPlugin",
             "reshard_after_forward: true": "reshard_after_forward: false",
             "activation_checkpointing: true": "activation_checkpointing: false"},
        ),
        (  # accumulation by the batch of one rank
            AXOLOTL.replace("gradient_accumulation_steps: 4", "batch_size: 8"),
            "micro_batch_size=8,sync_each_batch=false,activation_checkpointing=full",
            {"\nmicro_batch_size: 2": "\nmicro_batch_size: 8"},
        ),
        (  # a block is taken away
            AXOLOTL.replace("me/mine", "m") + "fsdp:\n  - full_shard\nfsdp_config:\n"
            "  fsdp_offload_params: false\n  fsdp_state_dict_type: FULL_STATE_DICT\nseed: 1\n",
            "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false,"
            "activation_checkpointing=full",
            {"fsdp:\n  - full_shard\nfsdp_config:\n  fsdp_offload_params: false\n"
             "  fsdp_state_dict_type: FULL_STATE_DICT\n": ""},
        ),
        (
            LLAMA_FACTORY,
            "micro_batch_size=8,sync_each_batch=false",
            {"per_device_train_batch_size: 1": "per_device_train_batch_size: 8",
             "gradient_accumulation_steps: 8":
                 "gradient_accumulation_steps: 1\ndisable_gradient_checkpointing: true"},
        ),
        (
            TRL,
            "micro_batch_size=4,sync_each_batch=false",
            {"per_device_train_batch_size: 2": "per_device_train_batch_size: 4",
             "gradient_accumulation_steps: 2":
                 "gradient_accumulation_steps: 1\ngradient_checkpointing: false"},
        ),
    ],
)  # fmt: skip
def test_an_answer_changes_its_lines_and_no_other(written, text, best, lines):
    """And reads back as what it is: file -> question -> file -> question."""
    path = written(text)
    question = read_question(path, None, {**PLACE, "fidelity": "predicted"})
    wanted = parse_settings(best)
    made, _ = patched(question, question.request.question(installed_versions()), wanted)
    expected = text
    for old, new in lines.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert made == expected
    again = read_question(written(made, "again.yaml"), None, {**PLACE, "fidelity": "predicted"})
    knobs = {name: again.asked.knobs[name] for name in ("micro_batch_size", "sharding")}
    assert knobs == {
        "micro_batch_size": wanted.micro_batch_size, "sharding": str(wanted.sharding)
    }  # fmt: skip
    for name in ("model", "adapter", "optimizer", "precision", "packing", "global_batch_size"):
        assert again.asked.arguments[name] == question.asked.arguments[name]


FLAT = """\
fsdp:
  - full_shard
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_use_orig_params: true  # for LoRA
  fsdp_offload_params: false
"""
WORDS = """\
fsdp: shard_grad_op auto_wrap
fsdp_config: {backward_prefetch: backward_pre, limit_all_gathers: true}
"""


@pytest.mark.parametrize(
    ("text", "options", "strategy", "expected"),
    [
        (AXOLOTL.replace("me/mine", "m"), FLAT, "shard_grad_op",
         "fsdp:\n  - full_shard\nfsdp_config:\n  fsdp_offload_params: false\n"
         "  reshard_after_forward: {1}\nfsdp_version: 2\n"),
        (TRL, WORDS, "shard_grad_op",
         "fsdp: {0} auto_wrap\nfsdp_config:\n  version: 2\n  reshard_after_forward: {1}\n"),
    ],
)  # fmt: skip
def test_a_file_of_fsdp1_is_written_as_one_of_fsdp2(written, text, options, strategy, expected):
    question = read_question(written(text + options), None, {**PLACE, "fidelity": "predicted"})
    assert question.asked.knobs["sharding"] == strategy
    present = Settings.from_dict(question.asked.knobs)
    for kind, whole in (("shard_grad_op", "false"), ("full_shard", "true")):
        best = replace(present, sharding=Sharding(kind))
        asked = question.request.question(installed_versions())
        made, _ = patched(question, asked, best)
        assert made.removeprefix(text) == expected.format(kind, whole)


NOT_SHARDED = """\
distributed_type: FSDP
num_machines: {0}
num_processes: {1}
mixed_precision: bf16
fsdp_config:
  fsdp_sharding_strategy: {2}
  fsdp_activation_checkpointing: false
"""
OF_ACCELERATE = {
    "model": "stories15m", "sequence_length": 128, "global_batch_size": 16,
    "framework": "accelerate", "fidelity": "predicted",
}  # fmt: skip


def put(path, cluster, release=None, **knobs):
    """What an answer of these knobs makes of accelerate's file."""
    stated = None if release is None else {"accelerate": release}
    beside = {**OF_ACCELERATE, "cluster": cluster, "framework_versions": stated}
    question = read_question(path, None, beside)
    present = {"micro_batch_size": 1, "sync_each_batch": True, **question.asked.knobs}
    asked = question.request.question(installed_versions())
    return yaml.safe_load(patched(question, asked, Settings.from_dict({**present, **knobs}))[0])


def test_what_no_shard_leaves_unsaid_is_written_where_an_answer_shards(written):
    kept = "  fsdp_state_dict_type: FULL_STATE_DICT\n"
    file = written(NOT_SHARDED.format(1, 8, "NO_SHARD") + kept)
    made = put(file, "8xa100-80gb", sharding="full_shard", activation_checkpointing="full")
    options = made["fsdp_config"]
    assert options["fsdp_activation_checkpointing"] is True
    assert options["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert options["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    assert (options["fsdp_version"], options["fsdp_reshard_after_forward"]) == (2, True)
    assert "fsdp_sharding_strategy" not in options


def test_what_is_written_must_checkpoint_as_the_answer(written, monkeypatch):
    def lost(*_):
        return {"fsdp_config": {"fsdp_version": 2, "fsdp_sharding_strategy": None}}

    file = written(NOT_SHARDED.format(1, 8, "FULL_SHARD"))
    monkeypatch.setattr("tuner.client.from_file.changes", lost)
    with pytest.raises(UsageError, match="activation_checkpointing=full cannot be put into it"):
        put(file, "8xa100-80gb", activation_checkpointing="full")


def test_hybrid_shard_is_put_back_with_the_groups_that_shard(written):
    for strategy in ("HYBRID_SHARD", 4):
        made = put(written(NOT_SHARDED.format(2, 16, strategy)), "2x8xa100-80gb")
        sizes = made["parallelism_config"]
        assert sizes["parallelism_config_dp_replicate_size"] == 2
        assert sizes["parallelism_config_dp_shard_size"] == 8
        assert made["fsdp_config"]["fsdp_reshard_after_forward"] is True


def test_nothing_of_fsdp2_is_put_into_a_file_for_releases_without_it(written):
    file = written(NOT_SHARDED.format(1, 8, "SHARD_GRAD_OP"))
    with pytest.raises(UsageError, match=r"shard by FSDP1.*needs accelerate 1\.6"):
        put(file, "8xa100-80gb", "1.4.0", sharding="full_shard")
    made = put(file, "8xa100-80gb", "1.4.0", activation_checkpointing="full")
    assert made["fsdp_config"] == {
        "fsdp_sharding_strategy": "SHARD_GRAD_OP",
        "fsdp_activation_checkpointing": True,
    }
    assert put(file, "8xa100-80gb", "1.4.0", sharding="ddp")["distributed_type"] == "MULTI_GPU"


def test_an_answer_that_the_file_has_changes_nothing(written):
    question = read_question(written(AXOLOTL), None, {**PLACE, "fidelity": "predicted"})
    present = Settings.from_dict(question.asked.knobs)
    assert patched(question, question.request.question(installed_versions()), present) == (
        AXOLOTL,
        {},
    )


def test_what_no_figure_takes_into_account_is_told_once_by_name(written):
    more = {
        "torch_compile": True,
        "optimizer": "came_pytorch",
        "some_new_option": 3,
        "unfrozen_parameters": ["lm_head"],
        "wandb_project": "mine",
        "relora": False,
    }
    values = {**yaml.safe_load(AXOLOTL), **more}
    asked = asked_of(open_file(written(yaml.safe_dump(values))).found, PLACE)
    told = [one.key for one in asked.uncounted]
    assert sorted(told) == [
        "lora_mlp_kernel", "optimizer", "some_new_option", "torch_compile", "unfrozen_parameters",
    ]  # fmt: skip
    assert all(one.effect for one in asked.uncounted)
    assert "taken to have the shape of llama-3.1-8b" in " ".join(
        asked.notes
    )  # NousResearch's is Meta's


@pytest.mark.parametrize(
    ("text", "named", "misspelt"),
    [
        (AXOLOTL, "micro_batch_size", "micro_batchsize"),
        (LLAMA_FACTORY, "per_device_train_batch_size", "per_device_train_batchsize"),
        (TRL, "gradient_accumulation_steps", "gradient_accumulation_step"),
    ],
)
def test_a_misspelt_field_is_not_passed_over(written, text, named, misspelt):
    assert named in text
    with pytest.raises(UsageError, match=rf"{misspelt}: got .*; did you mean {named}\?"):
        open_file(written(text.replace(named, misspelt)))


@pytest.mark.parametrize(
    "more", ["rl: dpo\n", "plugins: [a.DiffusionPlugin]\n", "tensor_parallel_size: 2\n"]
)
def test_another_training_step_is_not_predicted(written, more):
    found = open_file(written(AXOLOTL + more)).found
    with pytest.raises(NotCoveredError, match=r"not predicted"):
        asked_of(found, PLACE)


@pytest.mark.parametrize(
    "text",
    [
        AXOLOTL.replace("load_in_4bit: true", "load_in_8bit: true"),  # of qlora
        AXOLOTL.replace("adapter: qlora", "adapter: lora\nload_in_8bit: true"),
        f"{TRL}load_in_8bit: true\nload_in_4bit: true\n",
    ],
)
def test_a_model_is_loaded_in_four_bits_or_in_eight(written, text):
    with pytest.raises(UsageError) as caught:
        open_file(written(text), None)
    assert caught.value.field == "load_in_8bit"


LORA_OF_8 = AXOLOTL.replace("load_in_4bit: true", "load_in_8bit: true").replace("qlora", "lora")


@pytest.mark.parametrize(
    ("text", "eight", "said"),
    [
        (LORA_OF_8, True, ""),
        (f"{LORA_OF_8}gradient_checkpointing_kwargs:\n  use_reentrant: false\n", True, "drop"),
        (f"{LLAMA_FACTORY}quantization_bit: 8\n".replace("bf16: true\n", ""), False,
         "without mixed precision"),
        (f"{LORA_OF_8}fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n", False,
         "keeps whole matrices"),
        (LORA_OF_8.replace("NousResearch/Meta-Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1"), False,
         "what mixtral takes"),
        (f"{LLAMA_FACTORY}quantization_bit: 8\n", True, ""),
        (f"{TRL}load_in_8bit: true\nbf16: true\n", True, "not reentrant"),
    ],
)  # fmt: skip
def test_a_model_in_eight_bits_is_priced_where_that_is_known(written, text, eight, said):
    asked = asked_of(open_file(written(text)).found, PLACE)
    assert (asked.arguments["adapter"].get("quantize") == "int8") is eight
    told = [one for one in asked.uncounted if "8" in str(one) and "bit" in str(one)]
    assert said in " ".join(map(str, told))
    assert bool(told) is bool(said)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("use_kt: true", "KTransformers"),
        ("tensor_model_parallel_size: 1\nexpert_model_parallel_size: 2", "Megatron-Core"),
        ("use_hyper_parallel: true", "HyperParallel"),
    ],
)
def test_other_engines_of_llama_factory_are_not_predicted(written, field, why):
    with pytest.raises(NotCoveredError, match=why):
        asked_of(open_file(written(f"{LLAMA_FACTORY}{field}\n")).found, PLACE)
    assert asked_of(open_file(written(f"{LLAMA_FACTORY}use_kt: false\n")).found, PLACE)


def test_a_file_of_llama_factorys_next_form_is_told_by_its_field(written):
    text = "model: Qwen/Qwen3-4B\npeft_config:\n  name: lora\ncutoff_len: 2048\n"
    with pytest.raises(UsageError, match=r"^model: got 'Qwen/Qwen3-4B'; is a field of .* v1"):
        open_file(written(text))
    bare = text.replace("model: Qwen/Qwen3-4B\n", "")
    with pytest.raises(UsageError, match=r"^model_name_or_path: got nothing; must be a name"):
        open_file(written(bare))


@pytest.mark.parametrize(
    ("name", "method", "told"),
    [
        ("unsloth/llama-3-8b-Instruct-bnb-4bit", "qlora", False),
        ("TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ", "lora", True),
        ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "lora", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "lora", False),
    ],
)
def test_a_model_that_is_stored_in_few_bits_is_told_by_its_name(written, name, method, told):
    text = LLAMA_FACTORY.replace("meta-llama/Llama-3.1-8B-Instruct", name)
    asked = asked_of(open_file(written(text)).found, PLACE)
    assert asked.arguments["adapter"]["method"] == method
    assert any(one.key == "model" for one in asked.uncounted) is told


def test_what_badam_trains_in_parts_stays_in_bf16(written):
    text = LLAMA_FACTORY.replace("bf16: true\n", "").replace("type: lora", "type: full")
    for more, precision in (("", "fp32"), ("use_badam: true\n", "bf16")):
        found = open_file(written(text + more)).found
        assert asked_of(found, PLACE).arguments["precision"] == precision


def test_llama_factory_s_transformers_takes_words_for_fsdp(written):
    """With ``fsdp: true`` releases before 5.17 would wrap no layer by itself."""
    text = LLAMA_FACTORY.replace("type: lora", "type: full")
    question = read_question(written(text), None, {**PLACE, "fidelity": "predicted"})
    settings = "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=8"
    asked = question.request.question(installed_versions())
    put, _ = patched(question, asked, parse_settings(settings))
    assert yaml.safe_load(put)["fsdp"] == "full_shard auto_wrap"


def test_an_optimizer_that_deepspeed_steps_on_plain_shards_is_counted_as_torchs_own(written):
    """bitsandbytes takes no shards of FSDP2's, by which the file is counted."""
    whole = FULL.partition("fsdp_version")[0].replace("adamw_torch_fused", "adamw_bnb_8bit")
    for text, field in (
        (f"{whole}deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n", "optimizer"),
        (f"{LLAMA_FACTORY.replace('adamw_torch', 'paged_adamw_8bit')}deepspeed: ds_z3.json\n",
         "optim"),
    ):  # fmt: skip
        found = open_file(written(text)).found
        assert asked_of(found, PLACE).arguments["optimizer"] == "adamw_8bit"
        assert any(one.key == field and "as large" in one.effect for one in found.uncounted)
    for plain in (f"{whole}deepspeed: zero1.json\n", whole):
        assert asked_of(open_file(written(plain)).found, PLACE).arguments["optimizer"] == (
            "adamw_bnb_8bit"
        )


def test_axolotls_linear_layers_are_no_packed_experts(written):
    """It names those that it finds, while peft's own word stands for experts too."""
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1")
    adapter = asked_of(open_file(written(text)).found, PLACE).arguments["adapter"]
    assert adapter["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("dpo", "reference model"), ("kto", "reference model"), ("orpo", "pairs of answers"),
     ("grpo", "generated"), ("ebft", "generated")],
)  # fmt: skip
def test_what_preferences_would_need_is_told_by_name(written, kind, said):
    with pytest.raises(NotCoveredError, match=f"rl: got '{kind}'.*{said}.*not predicted"):
        asked_of(open_file(written(f"{AXOLOTL}rl: {kind}\n")).found, PLACE)


def test_a_model_is_named_in_the_file_a_folder_or_an_option(written, tmp_path):
    unknown = AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", "me/mine")
    found = open_file(written(unknown)).found
    with pytest.raises(UsageError, match=r"model: got 'me/mine'; is not in the catalogue: .*model"):
        asked_of(found, PLACE)
    assert asked_of(found, {**PLACE, "model": "qwen3-8b"}).arguments["model"].name == "qwen3-8b"
    folder = tmp_path / "me" / "mine"
    folder.mkdir(parents=True)
    config = '{"model_type": "llama", "vocab_size": 32000}'
    (folder / "config.json").write_text(config, encoding="utf-8")
    assert asked_of(found, PLACE, tmp_path).arguments["model"].vocab_size == 32000


def test_what_does_not_go_with_the_model_is_taken_as_near_as_it_is_predicted(written):
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", "huggyllama/llama-7b")
    text = text.replace("bf16: auto", "bf16: false").replace("2048", "8192")
    more = "lora_modules_to_save: [nonesuch]\nliger_fused_linear_cross_entropy: true\n"
    text = text.replace("lora_target_linear: true", "lora_target_modules: [q_proj, wqkv]")
    question = read_question(written(text + more), None, {**PLACE, "fidelity": "predicted"})
    asked = question.asked.arguments
    assert asked["model"].max_sequence_length == asked["sequence_length"] == 8192
    assert asked["packing"] == {"variant": "position_ids"}  # FlashAttention takes no fp32
    assert asked["adapter"]["target_modules"] == ["q_proj"]
    assert "modules_to_save" not in asked["adapter"]
    told = {one.key for one in question.asked.uncounted}
    assert told >= {"sequence length", "target", "modules_to_save", "fused_loss"}
    # what was counted without stays in the file
    made, wanted = patched(
        question, question.request.question(installed_versions()), parse_settings(
            "micro_batch_size=8,sync_each_batch=false,activation_checkpointing=full"
        ),
    )  # fmt: skip
    assert "liger_fused_linear_cross_entropy: true" in made
    assert set(wanted) == {"micro_batch_size", "gradient_accumulation_steps"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|q)_proj",
         ["up_proj", "down_proj", "q_proj"]),
        (r"model.layers.[\d]+.(_checkpoint_wrapped_module.)?(self_attn).(q|k|v|o)_proj",
         ["q_proj", "k_proj", "v_proj", "o_proj"]),
        (r"model\.layers\.\d+\.self_attn\.(q|v)_proj", ["q_proj", "v_proj"]),
        (r"model.layers.(3|7).self_attn.(q|v)_proj", None),
        (r"model.layers.[\d]+.(q|v)_proj|lm_head", None),
    ],
)  # fmt: skip
def test_a_pattern_over_all_layers_is_read_by_its_names(pattern, names):
    fields = Fields({"lora_target_modules": pattern})
    found = _targets(fields, "lora_target_modules")
    assert found == (names or ["all-linear"])
    assert [one.key for one in fields.uncounted] == ([] if names else ["lora_target_modules"])


def test_deepspeed_is_read_from_beside_the_file_or_its_name(written, tmp_path):
    text = FULL.partition("fsdp_version")[0] + "deepspeed: ds/zero3.json\n"
    found = open_file(written(text)).found
    assert found.knobs["sharding"] == "full_shard"
    assert "taken from its name" in " ".join(map(str, found.uncounted))
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero3.json").write_text('{"zero_optimization": {"stage": 2}}')
    found = open_file(written(text)).found
    assert found.knobs["sharding"] == "shard_grad_op"
    assert "sharding" not in found.free
    with pytest.raises(UsageError, match=r"deepspeed: got 'mine.json'; is not here"):
        open_file(written(text.replace("ds/zero3", "mine")))


def test_axolotls_context_parallelism_is_counted_where_it_shards_whole_texts(written):
    ring = FULL.replace("sample_packing: true", "context_parallel_size: 4")
    asked = asked_of(open_file(written(ring)).found, PLACE)
    assert asked.knobs["cp_size"] == 4
    assert asked.arguments["global_batch_size"] == 1 * 2 * 2  # of two groups of four
    told = {one.key: one.effect for one in asked.uncounted}
    assert "counted as torch's" in told["context_parallel_size"]
    for text in (f"{FULL}context_parallel_size: 4\n", f"{AXOLOTL}sequence_parallel_degree: 4\n"):
        asked = asked_of(open_file(written(text)).found, PLACE)
        assert "cp_size" not in asked.knobs or asked.knobs["cp_size"] == 1
        assert any("predicted whole" in one.effect for one in asked.uncounted)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{AXOLOTL}evals_per_epoch: 4\n", []),  # on nothing
        (f"{AXOLOTL}evals_per_epoch: 4\nval_set_size: 0\n", []),
        (f"{AXOLOTL}eval_strategy: no\nval_set_size: 0.1\n", []),
        (f"{AXOLOTL}val_set_size: 0.1\neval_batch_size: 2\n", ["val_set_size"]),
        (f"{AXOLOTL}val_set_size: 0.1\nevals_per_epoch: 4\neval_batch_size: 4\n",
         ["evals_per_epoch", "eval_batch_size"]),
        (f"{LLAMA_FACTORY}per_device_eval_batch_size: 8\n", []),
        (f"{LLAMA_FACTORY}eval_strategy: steps\nper_device_eval_batch_size: 1\n",
         ["eval_strategy"]),
        (f"{LLAMA_FACTORY}eval_strategy: steps\neval_steps: 50\n",
         ["eval_strategy", "per_device_eval_batch_size"]),  # 8 by default
        (f"{TRL}eval_strategy: epoch\n", ["eval_strategy", "per_device_eval_batch_size"]),
        ('{"output_dir": "out", "per_device_train_batch_size": 2, "eval_strategy": "no"}', []),
        ('{"output_dir": "out", "per_device_train_batch_size": 2, "eval_strategy": "steps",'
         ' "per_device_eval_batch_size": 16}', ["eval_strategy", "per_device_eval_batch_size"]),
    ],
)  # fmt: skip
def test_evaluation_is_not_counted_and_told(written, text, told):
    found = open_file(written(text)).found
    assert [one.key for one in found.uncounted if "eval" in one.effect] == told
    sizes = [str(one) for one in found.uncounted if "batch_size" in one.key]
    assert all("more sequences at once than the" in one for one in sizes)


def test_what_is_run_needs_no_liger_that_nobody_asked_for(written):
    path = written('{"output_dir": "out", "per_device_train_batch_size": 2}')
    given = {"model": "stories15m", "sequence_length": 128, "precision": "fp32", "cluster": "cpu:2"}
    versions = {
        fidelity: read_question(path, None, {**given, "fidelity": fidelity}).request
        for fidelity in ("measured", "predicted")
    }
    stated = {name: one.framework.versions for name, one in versions.items()}
    assert "liger-kernel" in stated["predicted"]
    assert "liger-kernel" not in stated["measured"]


@pytest.mark.parametrize("text", [AXOLOTL, LLAMA_FACTORY, TRL])
def test_a_named_json_of_deepspeed_says_the_same_batch_or_auto(tmp_path, text):
    path, named = tmp_path / "train.yml", tmp_path / "ds.json"
    lines = [one for one in text.splitlines() if not one.startswith(("fsdp", "deepspeed"))]
    path.write_text("\n".join([*lines, "deepspeed: ds.json", ""]), encoding="utf-8")

    def question(micro):
        sizes = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": "auto"}
        zero = {"stage": 2}
        named.write_text(json.dumps({**sizes, "zero_optimization": zero}), encoding="utf-8")
        return read_question(str(path), None, {**PLACE, "fidelity": "predicted"})

    own = question("auto").asked.knobs["micro_batch_size"]
    with pytest.raises(UsageError, match=f"got {own + 1}; the file says {own}: .* or auto"):
        question(own + 1)
    steps = question("auto").asked.knobs["gradient_accumulation_steps"]
    best = parse_settings(
        f"sharding=shard_grad_op,micro_batch_size={2 * own},"
        f"gradient_accumulation_steps={max(steps // 2, 1)}"
    )
    for micro in ("auto", own):
        asked = question(micro)
        whole = asked.request.question(installed_versions())
        if micro == "auto":
            assert patched(asked, whole, best)[1]
        else:
            with pytest.raises(UsageError, match=f"the answer says {2 * own}: .* or auto"):
                patched(asked, whole, best)
