"""``TrainingArguments``: read by transformers itself, as JSON and as flags."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import FORMATS, About, export, why_not

STATED = {"transformers": "5.23.0", "accelerate": "1.15.0", "torch": "2.13.0"}


def _trainer(**versions: str) -> Framework:
    return Framework(name=FrameworkName.TRAINER, versions={**STATED, **versions})


def _case(case: Any, settings: str, **more: Any) -> Any:
    given = {"model": "llama-3.1-8b", "cluster": "8xa100-80gb", "framework": _trainer(), **more}
    return case(settings=settings, **given).parts()


FULL = "sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=true"


def _read(path: Path, **more: object) -> Any:
    from transformers import HfArgumentParser, TrainingArguments

    values = {**json.loads(path.read_text(encoding="utf-8")), **more}
    path.write_text(json.dumps(values), encoding="utf-8")
    (read,) = HfArgumentParser(TrainingArguments).parse_json_file(str(path))
    return read


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("full", ["none", "full"])
def test_the_parser_reads_the_sharded_arguments(
    case: Any, about: About, tmp_path: Path, precision: Precision, full: str
) -> None:
    reduce_dtype = ReduceDtype.FP32 if precision is Precision.FP32 else ReduceDtype.BF16
    parts = _case(
        case,
        f"{FULL},activation_checkpointing={full}",
        workload={"precision": precision, "reduce_dtype": reduce_dtype},
    )
    path = tmp_path / "training_args.json"
    path.write_text(export("trainer", *parts, about), encoding="utf-8")
    read = _read(path, use_cpu=True, output_dir=str(tmp_path))
    assert read.per_device_train_batch_size == 2
    assert read.gradient_accumulation_steps == 4
    assert read.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert read.bf16 is (precision is Precision.BF16_MIXED)
    assert read.optim == "adamw_torch"
    assert read.run_name.startswith("tuner st-0123456789ab 2026-01-15 measured")
    plugin = read.fsdp_plugin_args
    assert plugin["fsdp_version"] == 2
    assert plugin["reshard_after_forward"] is True
    assert plugin["activation_checkpointing"] is (full == "full")
    assert plugin["transformer_cls_names_to_wrap"] == "LlamaDecoderLayer"
    assert read.activation_checkpointing is False  # the plugin's, or none


def test_the_parser_reads_the_flags(case: Any, about: About, tmp_path: Path) -> None:
    from transformers import HfArgumentParser, TrainingArguments

    for sharding in ("full_shard", "ddp"):
        settings = f"sharding={sharding},micro_batch_size=2,gradient_accumulation_steps=4"
        parts = _case(case, settings, cluster="2x4xa100-80gb")
        text = export("trainer-flags", *parts, about)
        command = shlex.split(text[text.index("exec torchrun") :].replace("\\\n", " "))
        flags = command[command.index("$@") + 1 :]
        parser = HfArgumentParser(TrainingArguments)
        (flagged,) = parser.parse_args_into_dataclasses([*flags, "--output_dir", str(tmp_path)])
        path = tmp_path / "training_args.json"
        path.write_text(export("trainer", *parts, about), encoding="utf-8")
        as_json = _read(path, output_dir=str(tmp_path))
        apart = {"logging_dir"}
        assert {k: v for k, v in flagged.to_dict().items() if k not in apart} == {
            k: v for k, v in as_json.to_dict().items() if k not in apart
        }


def test_optimizers_are_those_of_the_probes(case: Any, about: About) -> None:
    from transformers.training_args import OptimizerNames

    names = {}
    for optimizer in Optimizer:
        parts = _case(case, FULL, workload={"optimizer": optimizer})
        names[optimizer] = json.loads(export("trainer", *parts, about))["optim"]
    assert names == {"adamw": "adamw_torch", "adamw_8bit": "adamw_torch_8bit", "sgd": "sgd"}
    assert set(names.values()) <= {str(name.value) for name in OptimizerNames}


def test_older_releases_are_told_in_their_own_words(case: Any, about: About) -> None:
    settings = f"{FULL},activation_checkpointing=full,cpu_offload=true"
    for version, spelling, name in (
        ("5.2.0", "full_shard auto_wrap offload", "gradient_checkpointing"),
        ("5.17.0", True, "gradient_checkpointing"),
        ("5.23.0", True, "activation_checkpointing"),
    ):
        parts = _case(case, settings, framework=_trainer(transformers=version))
        values = json.loads(export("trainer", *parts, about))
        assert values["fsdp"] == spelling
        assert values[name] is False  # the plugin checkpoints


def test_a_model_with_dropout_checkpoints_itself(case: Any, about: About) -> None:
    settings = "sharding=full_shard,activation_checkpointing=full"
    parts = _case(case, settings, model="gpt2", cluster="2xl4", sequence_length=64)
    values = json.loads(export("trainer", *parts, about))
    assert values["fsdp_config"]["activation_checkpointing"] is False
    assert values["activation_checkpointing"] is True
    assert values["activation_checkpointing_kwargs"] == {"use_reentrant": False}


@pytest.mark.parametrize(
    ("settings", "more", "reason"),
    [
        ("sharding=ddp,tp_size=2", {}, "--knob tp_size=1 or --framework trainer"),
        (
            "sharding=hybrid_shard",
            {"cluster": "2x4xl4"},
            "launch the Trainer with the file of the format accelerate",
        ),
        ("sharding=full_shard", {"cluster": "cpu:2", "model": "gpt2"}, "ignores FSDP on a CPU"),
        (
            "sharding=full_shard",
            {"framework": _trainer(transformers="4.45.0")},
            "--framework-version transformers=5.17",
        ),
        (
            "sharding=ddp",
            {"workload": {"precision": Precision.BF16_MIXED}},
            "in fp32, and the study has bf16; ask again with --reduce-dtype fp32",
        ),
        (
            "sharding=full_shard",
            {"workload": {"precision": Precision.BF16_MIXED, "reduce_dtype": ReduceDtype.FP32}},
            "in bf16, and the study has fp32; ask again with --reduce-dtype bf16",
        ),
    ],
)
def test_what_no_argument_can_say_is_refused(
    case: Any, settings: str, more: dict[str, Any], reason: str
) -> None:
    question, chosen = _case(case, settings, sequence_length=64, **more)
    for name in ("trainer", "trainer-flags"):
        assert reason in str(why_not(name, question, chosen))


def test_what_json_cannot_say_is_said_beside_it(case: Any, about: About) -> None:
    question, chosen = _case(case, FULL)
    load, data = FORMATS["trainer"].beside(question, chosen)
    assert "dtype=torch.bfloat16" in load
    assert "2 (micro-batch) x 4 (accumulation) x 8 (processes) = 64 sequences" in data
    flags = export("trainer-flags", question, chosen, about)
    assert "dtype=torch.bfloat16" in flags
