"""Each format's own fields, and what it refuses: one table of each."""

import json
import re
import tomllib
from pathlib import PurePath
from typing import Any

import pytest
import yaml

from tests.unit.launchfiles.cases import (
    ABOUT,
    EXAMPLES,
    NANOTRON,
    STATED,
    Case,
    of_script,
    trainer,
)
from tests.unit.launchfiles.readers import header_of, variables_in
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import KNOBS
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Loss, Optimizer, Precision, ReduceDtype
from tuner.launchfiles import FORMATS, Stack, export, why_not

MIXED = {"precision": Precision.BF16_MIXED}
REDUCED = {"reduce_dtype": ReduceDtype.FP32}
FULL = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=true"
DEFERRED = "sharding=zero1,sync_each_batch=false,gradient_accumulation_steps=2"
LIMITS = {"nvidia.com/gpu": 8}


# Format, case, and values at dotted paths of the file.
WRITTEN: list[tuple[str, Case, dict[str, Any]]] = [
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
    ("torchtitan", Case(settings="sharding=full_shard,activation_checkpointing=every_2",
                        workload=REDUCED), {
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"}}),
]  # fmt: skip
PARSERS = {".yaml": yaml.safe_load, ".json": json.loads, ".toml": tomllib.loads}


def test_what_is_written() -> None:
    for name, case, expected in WRITTEN:
        text = export(name, *case.parts(), ABOUT)
        values = PARSERS[PurePath(FORMATS[name].file_name).suffix](text)
        for path, value in expected.items():
            found = values
            for part in re.split(r"\.(?!com/)", path):
                found = found[part]
            assert found == value, (name, case, path)


def row(name: str, settings: str, reason: str, **more: Any) -> tuple[str, Case, str]:
    return name, Case(settings=settings, **more), reason


ACCUMULATED = "gradient_accumulation_steps=2,sync_each_batch"
LLAMA = {"model": "llama-3.2-1b"}
ON_CPU = {"cluster": "cpu:2", "model": "gpt2"}
GPUS_16 = {"cluster": "2x8xh100-80gb", "framework": NANOTRON}
REFUSED = [
    row("trainer", "sharding=ddp,fused_loss=true", "--knob fused_loss=false"),
    row("torchtitan", "sharding=full_shard,fused_loss=true", "--knob fused_loss=false",
        workload=REDUCED),
    row("accelerate", "sharding=full_shard,tp_size=2", "--knob tp_size=1"),
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
    row("trainer", "sharding=ddp,tp_size=2", "--knob tp_size=1 or --framework trainer",
        framework=trainer()),
    row("deepspeed", f"{FULL},activation_checkpointing=every_2", "activation_checkpointing=none"),
    row("torchtitan", "sharding=full_shard,activation_checkpointing=selective",
        "keeps every second matrix product", workload=REDUCED),
    row("trainer", "sharding=ddp,activation_checkpointing=selective", "cannot name what"),
    row("trainer", "sharding=ddp,activation_checkpointing=every_2",
        "--framework-version transformers=5.17",
        framework=Framework(name=FrameworkName.ACCELERATE, versions={
            "accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.0.0"})),
    row("trainer", "sharding=full_shard", "--reduce-dtype bf16", framework=trainer(),
        workload={**MIXED, **REDUCED}),
    row("trainer", "sharding=hybrid_shard", "with the file of the format accelerate",
        framework=trainer(), cluster="2x4xl4"),
    row("trainer", "sharding=full_shard", "ignores FSDP on a CPU", framework=trainer(), **ON_CPU),
    row("trainer", "sharding=full_shard", "--framework-version transformers=5.17",
        framework=trainer(transformers="4.45.0")),
]  # fmt: skip


def test_what_a_launcher_has_not_is_refused() -> None:
    for name, case, reason in REFUSED:
        names = (name, "trainer-flags") if name == "trainer" else (name,)
        for one in names:
            assert reason in str(why_not(one, *case.parts())), (one, case)


def test_json_has_all_knobs() -> None:
    text = export("json", *Case(settings="sharding=ddp").parts(), ABOUT)
    assert list(json.loads(text)["settings"]) == list(KNOBS)


def test_a_loss_that_is_not_transformers_own_is_said() -> None:
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
def test_a_stated_accelerate_must_know_the_configuration(settings: str, oldest: str) -> None:
    major, minor = oldest.split(".")
    for version, known in ((f"{oldest}.0", True), (f"{major}.{int(minor) - 1}.0", False)):
        stated = {"accelerate": version, "torch": "2.13.0"}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=stated)
        case = Case(cluster="2x8xa100-80gb", settings=settings, framework=framework)
        told = why_not("accelerate", *case.parts())
        assert (told is None) is known, told
        assert known or f"--framework-version accelerate={oldest}" in str(told)


def test_code_with_a_loss_is_for_models_that_take_one() -> None:
    for release, taken in (("4.48.0", False), ("4.49.0", True)):
        versions = {**STATED, "transformers": release}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=versions)
        for loss in Loss:
            case = Case(settings="sharding=ddp", framework=framework, workload={"loss": loss})
            told = why_not("accelerate", *case.parts())
            assert (told is None) is (taken or loss is Loss.HF)
            assert told is None or "--framework-version transformers=4.49" in told


def test_an_option_that_does_something_else_is_left_to_the_script() -> None:
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


def test_nanotron_is_told_no_field_that_its_release_refuses() -> None:
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
def test_files_that_are_true_of_a_script(name: str, formats: set[str]) -> None:
    parts = of_script(name)
    found = {known for known in FORMATS if why_not(known, *parts) is None}
    assert found == {known for known, one in FORMATS.items() if one.stack is Stack.ANY} | formats
    for refused in set(FORMATS) - found - {"nanotron"}:
        assert "which tuner studies show tells" in str(why_not(refused, *parts))
    for known in found - {"json", "trainer", "trainer-flags"}:
        text = export(known, *parts, ABOUT)
        assert "Your own script train.py on " in header_of(text)
        assert not re.search("adamw|AdamW|TUNED_(OPTIMIZER|PRECISION|REDUCE_DTYPE)", text)
