"""Each format's own fields, and what it refuses: one table of each."""

import ast
import json
import re
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path, PurePath

import pytest
import yaml

from tests.unit.launchfiles.cases import (
    ABOUT,
    EXAMPLES,
    NANOTRON,
    STATED,
    ZERO,
    Case,
    grid,
    of_script,
    trainer,
)
from tests.unit.launchfiles.readers import header_of, variables_in
from tuner.core.adapter import Adapter, AdapterMethod, Quantize
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import KNOBS
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Loss, Optimizer, Precision, ReduceDtype, TensorParallel
from tuner.launchfiles import FORMATS, Stack, export, why_not
from tuner.space.rules import broken_rule

MIXED = {"precision": Precision.BF16_MIXED}
REDUCED = {"reduce_dtype": ReduceDtype.FP32}
FULL = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=true"
DEFERRED = "sharding=zero1,sync_each_batch=false,gradient_accumulation_steps=2"
LIMITS = {"nvidia.com/gpu": 8}


# Format, case, and values at dotted paths of the file.
WRITTEN = [
    ("deepspeed", Case(settings="sharding=shard_grad_op", workload={**MIXED, **REDUCED}), {
        "zero_optimization": {"stage": 2}, "communication_data_type": "fp32",
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    ("deepspeed", Case(settings=FULL), {
        "zero_optimization.stage": 3, "bf16.bf16_optimizer_states": True, "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}),
    ("deepspeed", Case(settings="sharding=zero1,sync_each_batch=false", framework=NANOTRON), {
        "zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"}}),
    ("deepspeed", Case(settings="sharding=full_shard,cpu_offload=true",
                       workload={"optimizer": Optimizer.SGD}), {
        "zero_optimization.offload_param.device": "cpu", "zero_allow_untested_optimizer": True,
        "zero_optimization.offload_optimizer.device": "cpu", "zero_force_ds_cpu_optimizer": False}),
    ("deepspeed", Case(settings="sharding=zero1,sync_each_batch=false", framework=ZERO,
                       workload={**MIXED, "reduce_dtype": ReduceDtype.BF16}), {
        "zero_optimization": {"stage": 1, "overlap_comm": False, "reduce_bucket_size": 500000000},
        "bf16": {"enabled": True}, "communication_data_type": "bf16"}),
    ("deepspeed", Case(settings="sharding=shard_grad_op,cpu_offload=true", framework=ZERO,
                       workload=MIXED), {
        "zero_optimization.stage": 2, "zero_optimization.offload_optimizer.device": "cpu"}),
    ("kubernetes", Case(model="gpt2", cluster="2x8xh100-80gb", settings="sharding=ddp"), {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": "tuned-st-0123456789ab"}, "spec.trainer.numNodes": 2,
        "spec.trainer.numProcPerNode": 8,
        "spec.trainer.resourcesPerNode": {"requests": LIMITS, "limits": LIMITS}}),
    ("kubernetes", Case(model="gpt2", cluster="cpu:2", settings="sharding=ddp"), {
        "spec.trainer.numProcPerNode": 2,
        "spec.trainer.resourcesPerNode.limits": {"cpu": parse_cluster("cpu:2").gpu.cores}}),
    ("nanotron", Case(cluster="2x8xh100-80gb", framework=NANOTRON,
                      settings=f"{DEFERRED},tp_size=2,pp_size=4"), {
        "parallelism.dp": 2, "parallelism.tp": 2, "parallelism.pp": 4,
        "parallelism.tp_mode": "REDUCE_SCATTER", "parallelism.pp_engine": "1f1b",
        "parallelism.tp_recompute_allgather": False}),
    ("torchtitan", Case(settings="sharding=full_shard", workload=REDUCED), {
        "training.dtype": "bfloat16", "training.mixed_precision_param": "bfloat16",
        "model": {"name": "llama3", "flavor": "8B"}}),
    ("torchtitan", Case(settings="sharding=full_shard", workload={**REDUCED, **MIXED},
                        model="qwen3-0.6b"), {
        "training.dtype": "float32", "training.mixed_precision_param": "bfloat16",
        "model": {"name": "qwen3", "flavor": "0.6B"}}),
    ("torchtitan", Case(settings="sharding=full_shard", model="mistral-7b-v0.3",
                        workload={**REDUCED, "precision": Precision.FP32}), {
        "training.dtype": "float32", "training.mixed_precision_param": "float32",
        "model": {"name": "MODEL", "flavor": "FLAVOR"}}),
    ("trainer", Case(settings=f"{FULL},activation_checkpointing=full,cpu_offload=true",
                     framework=trainer(transformers="5.2.0")), {
        "fsdp": "full_shard auto_wrap offload", "gradient_checkpointing": False}),
    ("trainer", Case(settings=f"{FULL},activation_checkpointing=full,cpu_offload=true",
                     framework=trainer(transformers="5.17.0")), {
        "fsdp": True, "gradient_checkpointing": False}),
    ("trainer", Case(settings=f"{FULL},activation_checkpointing=full,cpu_offload=true",
                     framework=trainer()), {"fsdp": True, "activation_checkpointing": False}),
    ("trainer", Case(settings="sharding=ddp", framework=trainer(), workload=MIXED), {"bf16": True}),
    ("trainer", Case(model="gpt2", cluster="2xl4", framework=trainer(),
                     settings="sharding=full_shard,activation_checkpointing=full"), {
        "fsdp_config.activation_checkpointing": False, "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False}}),
    ("trainer", Case(settings=f"{FULL},activation_checkpointing=every_2", framework=trainer()), {
        "fsdp_config.activation_checkpointing": False, "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 2}}),
    ("trainer", Case(settings=f"{FULL},fused_loss=true", framework=trainer()), {
        "use_liger_kernel": True, "liger_kernel_config": {
            "fused_linear_cross_entropy": True, "cross_entropy": False, "rope": False,
            "rms_norm": False, "swiglu": False, "geglu": False}}),
    ("trainer", Case(settings=f"{FULL},activation_checkpointing=offload", framework=trainer()), {
        "fsdp_config.activation_checkpointing": False, "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": False, "offload": True}}),
    ("torchtitan", Case(settings="sharding=full_shard,activation_checkpointing=every_2",
                        workload=REDUCED), {
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"}}),
]  # fmt: skip
PARSERS = {".yaml": yaml.safe_load, ".json": json.loads, ".toml": tomllib.loads}


def test_what_is_written():
    for name, case, expected in WRITTEN:
        text = export(name, *case.parts(), ABOUT)
        values = PARSERS[PurePath(FORMATS[name].file_name).suffix](text)
        for path, value in expected.items():
            found = values
            for part in re.split(r"\.(?!com/)", path):
                found = found[part]
            assert found == value, (name, case, path)


def test_weights_are_asked_for_by_the_releases_own_word():
    for release, word in (("4.55.4", "torch_dtype"), ("4.56.0", "dtype")):
        framework = replace(trainer(transformers=release), name=FrameworkName.ACCELERATE)
        parts = Case(settings="sharding=ddp", framework=framework).parts()
        assert f"MODEL, {word}=torch.bfloat16" in export("accelerate", *parts, ABOUT)


def row(name, settings, reason, **more):
    return name, Case(settings=settings, **more), reason


ACCUMULATED = "gradient_accumulation_steps=2,sync_each_batch"
LLAMA = {"model": "llama-3.2-1b"}
ON_CPU = {"cluster": "cpu:2", "model": "gpt2"}
GPUS_16 = {"cluster": "2x8xh100-80gb", "framework": NANOTRON}
REFUSED = [
    row("trainer", "sharding=ddp,fused_loss=true", "--knob fused_loss=false"),
    row("trainer", "sharding=full_shard", "--framework-version transformers=5.0",
        framework=trainer(transformers="4.57.6")),
    row("trainer-flags", "sharding=ddp,fused_loss=true", "take the format trainer",
        framework=trainer()),
    row("torchtitan", "sharding=full_shard,fused_loss=true", "--knob fused_loss=false",
        workload=REDUCED),
    row("accelerate", "sharding=full_shard,tp_size=2", "--knob tp_size=1", **LLAMA),
    row("accelerate", "sharding=shard_grad_op,tp_size=2", "--knob sharding=full_shard",
        framework=trainer()),
    row("accelerate", "sharding=zero1", "--framework accelerate"),
    row("accelerate", "sharding=hybrid_shard", "a node has one GPU", cluster="2x1xl4"),
    row("deepspeed", "sharding=hybrid_shard", "no equivalent of hybrid_shard"),
    row("deepspeed", "sharding=ddp", "--precision bf16_mixed"),
    row("deepspeed", "sharding=shard_grad_op,cpu_offload=true", "--knob sharding=full_shard"),
    row("deepspeed", f"sharding=full_shard,{ACCUMULATED}=false", "--knob sync_each_batch=true"),
    row("deepspeed", f"sharding=ddp,{ACCUMULATED}=true", "--knob sync_each_batch=false",
        workload={"precision": Precision.FP32}),
    row("nanotron", "sharding=ddp", "--framework nanotron", cluster="2x8xh100-80gb"),
    row("nanotron", "sharding=full_shard", "--knob sharding=ddp,zero1", **GPUS_16),
    row("nanotron", "sharding=ddp", "trains on GPUs", cluster="cpu:2", framework=NANOTRON),
    row("nanotron", f"sharding=ddp,{ACCUMULATED}=true", "--knob sync_each_batch=false", **GPUS_16),
    row("nanotron", "sharding=zero1,cpu_offload=true", "--knob cpu_offload=false", **GPUS_16),
    row("torch", "sharding=ddp,tp_size=2", "--knob sharding=shard_grad_op,full_shard", **LLAMA),
    row("torch", "sharding=zero1", "--framework torch", **LLAMA),
    row("torch", "sharding=hybrid_shard,tp_size=2", "has one data-parallel rank here", **LLAMA,
        cluster="2x2xl4"),
    row("torchtitan", f"sharding=full_shard,{ACCUMULATED}=false", "--knob sync_each_batch=true",
        workload=REDUCED),
    row("torchtitan", "sharding=full_shard,tp_size=2,tp_recompute_allgather=true",
        "--knob tp_recompute_allgather=false", workload=REDUCED),
    row("torchtitan", "sharding=full_shard", "--reduce-dtype fp32"),
    row("torchtitan", "sharding=full_shard", "--loss fp32",
        workload={**REDUCED, "loss": Loss.OWN_DTYPE}),
    row("torchtitan", "sharding=full_shard", "trains on GPUs", **ON_CPU, workload=REDUCED),
    row("torchtitan", "sharding=ddp,tp_size=2", "--precision bf16", cluster="2xl4",
        workload=MIXED),
    row("trainer", "sharding=ddp,tp_size=2", "--knob sharding=full_shard", framework=trainer()),
    row("trainer", "sharding=ddp,tp_size=2", "ask again with --knob tp_size=1", cluster="cpu:2",
        framework=trainer()),
    row("deepspeed", f"{FULL},activation_checkpointing=every_2", "activation_checkpointing=none"),
    row("torchtitan", "sharding=full_shard,activation_checkpointing=selective",
        "keeps every second matrix product", workload=REDUCED),
    row("trainer", "sharding=ddp,activation_checkpointing=selective", "cannot name what"),
    row("trainer", "sharding=ddp,activation_checkpointing=every_2",
        "--framework-version transformers=5.16",
        framework=Framework(name=FrameworkName.ACCELERATE, versions={
            "accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.0.0"})),
    row("trainer", "sharding=ddp,activation_checkpointing=offload",
        "--framework-version transformers=5.17", framework=trainer(transformers="5.16.0")),
    row("torchtitan", "sharding=full_shard,activation_checkpointing=offload",
        "inputs of checkpointed layers on the device", workload=REDUCED),
    row("trainer", "sharding=full_shard", "--reduce-dtype bf16", framework=trainer(),
        workload={**MIXED, **REDUCED}),
    row("trainer", "sharding=hybrid_shard", "with the file of the format accelerate",
        framework=trainer(), cluster="2x4xl4"),
    row("trainer", "sharding=full_shard", "ignores FSDP on a CPU", framework=trainer(), **ON_CPU),
    row("trainer", "sharding=full_shard", "--framework-version transformers=5.0",
        framework=trainer(transformers="4.45.0")),
]  # fmt: skip


def test_what_a_launcher_has_not_is_refused():
    for name, case, reason in REFUSED:
        names = (name, "trainer-flags") if name == "trainer" else (name,)
        for one in names:
            assert reason in str(why_not(one, *case.parts())), (one, case)


def test_a_fused_loss_is_exported_as_what_computes_it():
    """No file holds another loss than the study's, and no reason leads to one that does."""
    of_chunked, of_liger = {"accelerate", "torch"}, {"trainer"}
    for name, own in (("accelerate", of_chunked), ("torch", of_chunked), ("trainer", of_liger)):
        framework = Framework(name=FrameworkName(name), versions=STATED)
        for sharding in ("full_shard", "ddp"):
            parts = Case(settings=f"sharding={sharding},fused_loss=true", framework=framework)
            taken = {one for one in FORMATS if why_not(one, *parts.parts()) is None}
            anything = {one for one, form in FORMATS.items() if form.stack is Stack.ANY}
            assert taken == anything | own, (name, sharding)
    for framework, cluster, sharding in (
        (trainer(transformers="4.56.0"), "8xh100-80gb", "full_shard"),
        (trainer(), "2x4xl4", "hybrid_shard"),
    ):
        for fused in (True, False):
            settings = f"sharding={sharding},fused_loss={str(fused).lower()}"
            case = Case(settings=settings, cluster=cluster, framework=framework)
            told = str(why_not("trainer", *case.parts()))
            assert ("format accelerate" in told) is not fused
            assert (why_not("accelerate", *case.parts()) is None) is not fused


@pytest.mark.parametrize(
    ("row", "settings", "workload"),
    [
        ("tp_size", "tp_size=2", {}),
        ("tensor_parallel", "tp_size=2", {"tensor_parallel": TensorParallel.GATHERED_LOGITS}),
        ("pp_size", "pp_size=2", {}),
        ("fused_loss", "fused_loss=true", {}),
    ],
)
def test_the_documents_say_which_formats_have_code_or_nothing(row, settings, workload):
    page = (Path(__file__).parents[3] / "docs" / "exports.md").read_text(encoding="utf-8")
    table = page.partition("## What each can say")[2].partition("\n## ")[0]
    names, cells = (
        [cell.strip(" `").split("`")[0] for cell in line.split("|")[2:-1]]
        for head in ("knob", f"`{row}`")
        for line in table.splitlines()
        if line.startswith(f"| {head} |")
    )
    parts = Case(settings=f"sharding=full_shard,{settings}", workload=workload).parts()
    for name, cell in zip(names, cells, strict=True):
        if cell == "no" or cell.startswith("code"):
            assert (why_not(name, *parts) is None) is (cell != "no"), name


def test_tensor_parallelism_is_named_where_layers_are_split():
    for tp_size in (1, 2):
        settings = f"sharding=full_shard,tp_size={tp_size}"
        ways = {"tensor_parallel": TensorParallel.GATHERED_LOGITS}
        parts = Case(settings=settings, workload=ways, **LLAMA).parts()
        for name in ("torch", "env"):
            text = re.sub("(?m)^#   .*\n", "", export(name, *parts, ABOUT))  # the header has all
            assert ("gathered_logits" in text) is (tp_size == 2), name


def test_json_has_all_knobs():
    text = export("json", *Case(settings="sharding=ddp").parts(), ABOUT)
    assert list(json.loads(text)["settings"]) == list(KNOBS)


def test_a_loss_that_is_not_transformers_own_is_said():
    for loss, said in ((Loss.FP32, "of an fp32 copy"), (Loss.OWN_DTYPE, "as they are")):
        case = Case(settings="sharding=full_shard", workload={"loss": loss}, framework=trainer())
        parts = case.parts()
        (told,) = [one for one in FORMATS["trainer"].beside(*parts) if "compute_loss_func" in one]
        assert said in told
        assert "compute_loss_func" in export("trainer-flags", *parts, ABOUT)
        assert variables_in(export("torchrun", *parts, ABOUT))["TUNED_LOSS"] == loss
    own = Case(settings="sharding=full_shard", framework=trainer()).parts()
    assert not [one for one in FORMATS["trainer"].beside(*own) if "loss" in one]
    assert "TUNED_LOSS" not in export("torchrun", *own, ABOUT)
    of_a_script = of_script("trainer", workload={"loss": Loss.FP32})
    assert "compute_loss_func" not in export("trainer-flags", *of_a_script, ABOUT)


@pytest.mark.parametrize(
    ("settings", "oldest"),
    [
        ("sharding=ddp,gradient_accumulation_steps=2", "0.31"),
        ("sharding=full_shard,gradient_accumulation_steps=2", "1.6"),
        ("sharding=hybrid_shard", "1.10"),
        ("sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false", "1.11"),
    ],
)
def test_a_stated_accelerate_must_know_the_configuration(settings, oldest):
    major, minor = oldest.split(".")
    for version, known in ((f"{oldest}.0", True), (f"{major}.{int(minor) - 1}.0", False)):
        stated = {"accelerate": version, "torch": "2.13.0"}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=stated)
        case = Case(cluster="2x8xa100-80gb", settings=settings, framework=framework)
        told = why_not("accelerate", *case.parts())
        assert (told is None) is known, told
        assert known or f"--framework-version accelerate={oldest}" in str(told)


def test_fp32_adapters_beside_a_narrow_model_need_releases_that_shard_them():
    """accelerate widened what is frozen before 1.13; torch before 2.8 refused the mixture."""
    lora = {"adapter": Adapter(rank=8)}
    mixed, sharded = {**lora, "precision": Precision.BF16_MIXED}, "sharding=full_shard"
    for workload, settings, needed in (
        (mixed, sharded, "1.13 or newer, torch 2.8 or newer, peft 0.12 or newer. Start"),
        (mixed, "sharding=ddp", "0.31 or newer, peft 0.12 or newer. Start"),
        (lora, sharded, "1.6 or newer, peft 0.12 or newer. Start"),
    ):
        text = export("accelerate", *Case(settings=settings, workload=workload).parts(), ABOUT)
        assert f"Needs accelerate {needed}" in header_of(text)
    for package, release, oldest in (
        ("accelerate", "1.12.0", "1.13"), ("torch", "2.7.1", "2.8"), ("torch", "2.8.0", ""),
    ):  # fmt: skip
        stated = Framework(name=FrameworkName.ACCELERATE, versions={**STATED, package: release})
        for workload, settings in ((mixed, sharded), (mixed, "sharding=ddp"), (lora, sharded)):
            case = Case(settings=settings, workload=workload, framework=stated)
            broken = broken_rule(*case.parts())
            is_old = bool(oldest) and workload is mixed and settings == sharded
            assert (broken is not None) is is_old, broken
            assert broken is None or f"{oldest} or newer" in broken.allowed
    old = Framework(name=FrameworkName.ACCELERATE, versions={**STATED, "accelerate": "1.5.2"})
    for settings in (sharded, "sharding=ddp"):  # FSDP1
        broken = broken_rule(*Case(settings=settings, workload=lora, framework=old).parts())
        assert (broken is not None and "1.6 or newer" in broken.allowed) is (settings == sharded)


def test_what_a_quantized_model_needs_is_said():
    """Each rank reads it whole: before 1.14 accelerate hands out scales that no shard has."""
    for method, needed in (("lora", ""), ("qlora", ", bitsandbytes 0.46.1 or newer")):
        adapter = Adapter(method=AdapterMethod(method))
        parts = Case(settings="sharding=full_shard", workload={"adapter": adapter}).parts()
        text = export("accelerate", *parts, ABOUT)
        assert f"1.6 or newer, peft 0.12 or newer{needed}. Start" in header_of(text)
        handed_out = yaml.safe_load(text)["fsdp_config"]["fsdp_cpu_ram_efficient_loading"]
        assert handed_out is (method == "lora")


def test_a_model_in_eight_bits_is_loaded_so_and_checkpointed_reentrantly():
    """Other checkpoints do not drop what its layers keep."""
    work = {"adapter": Adapter(quantize=Quantize.INT8), **MIXED}
    settings = "sharding=ddp,activation_checkpointing=full"
    text = export("accelerate", *Case(settings=settings, workload=work).parts(), ABOUT)
    assert "bitsandbytes 0.46.1 or newer" in header_of(text)
    for line in ("BitsAndBytesConfig(load_in_8bit=True),", '{"use_reentrant": True}',
                 "model.enable_input_require_grads()"):  # fmt: skip
        assert line in text
    parts = Case(settings=settings, framework=trainer(), workload=work).parts()
    arguments = json.loads(export("trainer", *parts, ABOUT))
    assert arguments["activation_checkpointing_kwargs"] == {"use_reentrant": True}
    assert "load_in_8bit=True" in " ".join(FORMATS["trainer"].beside(*parts))
    sharded = broken_rule(*Case(settings="sharding=full_shard", workload=work).parts())
    assert "keeps whole matrices" in sharded.allowed


@pytest.mark.parametrize("how", ["none", "full"])
@pytest.mark.parametrize("method", AdapterMethod)
def test_the_trainer_s_adapter_is_code_as_it_stands(method, how):
    workload = {"adapter": Adapter(method=method)}
    settings = f"sharding=ddp,activation_checkpointing={how}"
    parts = Case(settings=settings, framework=trainer(), workload=workload).parts()
    (beside,) = [one for one in FORMATS["trainer"].beside(*parts) if "get_peft_model" in one]
    flags = export("trainer-flags", *parts, ABOUT)
    fenced = re.search(r"# ```python\n(.*?)# ```", flags, re.DOTALL)
    assert fenced is not None
    code = beside.partition("\n")[2]
    assert "".join(line[2:] for line in fenced[1].splitlines(keepends=True)) == f"{code}\n"
    body = ast.parse(code).body
    names = {name.asname or name.name for one in body for name in getattr(one, "names", ())}
    asked = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert asked - names == {"MODEL", "model"}
    assert ("BitsAndBytesConfig" in names) is (method is AdapterMethod.QLORA)


def test_only_a_script_that_checkpoints_asks_for_gradients_of_a_quantized_model_s_input():
    by = {"sharding=ddp": True, "sharding=full_shard": False}  # FSDP's option, without dropout
    for sharding, by_script in by.items():
        for how, method in product(("none", "full"), AdapterMethod):
            settings = f"{sharding},activation_checkpointing={how}"
            workload = {"adapter": Adapter(method=method, dropout=0.0)}
            text = export("accelerate", *Case(settings=settings, workload=workload).parts(), ABOUT)
            asks = by_script and how == "full" and method is AdapterMethod.QLORA
            assert ("model.enable_input_require_grads()" in text) is asks
            assert "is_gradient_checkpointing" not in text


def test_fused_adamw_of_parameters_on_a_cpu_needs_a_torch_that_has_it():
    work = {"optimizer": Optimizer.ADAMW_FUSED}
    for torch, cluster, format_name, refused in (
        ("2.3.1", "8xa100-80gb", "accelerate", True),
        ("2.4.0", "8xa100-80gb", "accelerate", False),
        ("2.3.1", "8xa100-80gb", "trainer", False),  # it moves the model first
        ("2.3.1", "cpu:2", "trainer", True),
    ):
        own = {**STATED, "torch": torch}
        frame = Framework(name=FrameworkName(format_name), versions=own)
        case = Case(cluster=cluster, settings="sharding=ddp", framework=frame, workload=work)
        told = why_not(format_name, *case.parts())
        assert (told is not None and "torch=2.4" in told) is refused, told


def test_code_with_a_loss_is_for_models_that_take_one():
    for release, taken in (("4.48.0", False), ("4.49.0", True)):
        versions = {**STATED, "transformers": release}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=versions)
        for loss in Loss:
            case = Case(settings="sharding=ddp", framework=framework, workload={"loss": loss})
            told = why_not("accelerate", *case.parts())
            assert (told is None) is (taken or loss is Loss.HF)
            assert told is None or "--framework-version transformers=4.49" in told


def test_an_option_that_does_something_else_is_left_to_the_script():
    """FSDP2's checkpointing of accelerate 1.8 to 1.14 is of the parts of layers."""
    settings = "sharding=full_shard,activation_checkpointing=full"
    versions = (
        ("1.7.0", True, "1.6 or newer, but not 1.8 to 1.14. Start"),
        ("1.8.0", False, "1.6 or newer. Start"),
        ("1.14.0", False, "1.6 or newer. Start"),
        ("1.15.0", True, "1.15 or newer. Start"),
    )
    for version, is_option, needed in versions:
        case = Case(settings=settings, framework=trainer(accelerate=version))
        text = export("accelerate", *case.parts(), ABOUT)
        option = yaml.safe_load(text)["fsdp_config"]["fsdp_activation_checkpointing"]
        assert option is is_option
        assert f"Needs accelerate {needed}" in header_of(text)
        assert ("model.gradient_checkpointing_enable(" in header_of(text)) is not is_option
        told = json.loads(export("trainer", *case.parts(), ABOUT))
        assert told["fsdp_config"]["activation_checkpointing"] is is_option
        assert told["activation_checkpointing"] is not is_option


def test_nanotron_is_told_no_field_that_its_release_refuses():
    """It reads its configuration strictly."""
    case = Case(cluster="2x8xh100-80gb", framework=NANOTRON, settings=DEFERRED)
    text = export("nanotron", *case.parts(), ABOUT)
    assert "tp_recompute_allgather" not in yaml.safe_load(text)["parallelism"]
    assert "from its repository" not in header_of(text)
    parts = EXAMPLES["nanotron"].parts()
    assert "from its repository" in header_of(export("nanotron", *parts, ABOUT))
    for name in ("torchrun", "sbatch"):
        text = export(name, *parts, ABOUT)
        assert variables_in(text)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


# ---- a script of the user's own: its files say what it was told -----------------------------


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("torch", set()),
        ("accelerate", {"accelerate"}),
        ("trainer", {"accelerate", "trainer", "trainer-flags"}),
    ],
)
def test_files_that_are_true_of_a_script(name, formats):
    parts = of_script(name)
    found = {known for known in FORMATS if why_not(known, *parts) is None}
    assert found == {known for known, one in FORMATS.items() if one.stack is Stack.ANY} | formats
    for refused in set(FORMATS) - found - {"nanotron"}:
        assert "which tuner studies show tells" in str(why_not(refused, *parts))
    for known in found - {"json", "trainer", "trainer-flags"}:
        text = export(known, *parts, ABOUT)
        assert "Your own script train.py on " in header_of(text)
        assert not re.search("adamw|AdamW|TUNED_(OPTIMIZER|PRECISION|REDUCE_DTYPE)", text)


def test_the_documents_say_of_each_flag_what_it_was_seen_to_do():
    """Those that any of the grid's files has: a new one is seen to act, and told."""
    page = (Path(__file__).parents[3] / "docs" / "exports.md").read_text(encoding="utf-8")
    table = page.partition("## What each flag was seen to do")[2].partition("\n## ")[0]
    told = {name.removeprefix("fsdp_") for name in re.findall(r"`(\w+)`", table)}
    written = set()

    def flags_of(values):
        for name, value in values.items():
            if isinstance(value, dict):
                flags_of(value)
            else:
                written.add(name.removeprefix("fsdp_"))

    for parts in grid():
        for name, read in (("accelerate", yaml.safe_load), ("trainer", json.loads)):
            if why_not(name, *parts) is None:
                flags_of(read(export(name, *parts, ABOUT)))
    assert {"reshard_after_forward", "sync_each_batch"} <= written
    assert not written - told
