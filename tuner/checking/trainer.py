"""``TrainingArguments`` of transformers' Trainer as JSON.

Field names and defaults are those of transformers 5.23 (``training_args.py``). Fields that change
neither what a step needs nor what it takes are passed over: there are some hundred.
"""

from collections.abc import Mapping
from typing import Any

from tuner.checking.fields import Fields
from tuner.checking.found import Found
from tuner.checking.fsdp import read_fsdp
from tuner.settings import Checkpointing, Sharding
from tuner.workload import Optimizer

NAME = "trainer"
MARKS = frozenset({"per_device_train_batch_size", "accelerator_config", "fsdp", "output_dir"})
"""Fields that other files do not have."""
OPTIMIZERS = {
    "adamw_torch": Optimizer.ADAMW,
    "adamw_torch_fused": Optimizer.ADAMW,
    "adamw_torch_8bit": Optimizer.ADAMW_8BIT,
    "sgd": Optimizer.SGD,
}
REFUSED: Mapping[str, str] = {
    "deepspeed": "check that file of DeepSpeed's in its place",
    "fp16": "must be false: fp16 is not predicted",
    "torch_compile": "must be false: compiled models are not predicted",
    "torch_compile_backend": "must be left out: compiled models are not predicted",
    "use_liger_kernel": "must be false: its kernels are not predicted",
    "auto_find_batch_size": "must be false: the batch must not change",
    "parallelism_config": "is not predicted",
    "fsdp_min_num_params": "must be 0: figures are of layers that are sharded one by one",
}
"""Fields that change what a step needs in ways that are not predicted."""
READ = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "accelerator_config", "optim",
    "bf16", "fsdp", "fsdp_config", "activation_checkpointing", "gradient_checkpointing", *REFUSED,
})  # fmt: skip
"""Fields that are looked at."""


def read(values: Mapping[str, Any]) -> Found:
    """What the file says.

    Raises:
        UsageError: a field is wrong, or asks for what is not predicted.
    """
    fields = Fields(values)
    fields.refuse_misspelt(READ)
    for name, why in REFUSED.items():
        fields.refuse(name, why, but=(False, 0, "no"))
    knobs, classes = _sharding(fields)
    sync = fields.part("accelerator_config")
    sync.refuse_misspelt(("split_batches", "gradient_accumulation_kwargs"))
    sync.refuse("split_batches", "must be false: a micro-batch is then of all ranks", but=(False,))
    kept = sync.part("gradient_accumulation_kwargs")
    kept.refuse_misspelt(("sync_each_batch",))
    sizes = {
        "micro_batch_size": "per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
    }
    knobs |= {
        "tp_size": 1,
        "pp_size": 1,
        "micro_batch_size": fields.whole(sizes["micro_batch_size"], 8),
        "gradient_accumulation_steps": fields.whole(sizes["gradient_accumulation_steps"], 1),
        "sync_each_batch": kept.flag("sync_each_batch"),
    }
    optimizer = fields.choice("optim", OPTIMIZERS, "adamw_torch_fused")
    return Found(
        format_name=NAME,
        knobs=knobs,
        unsaid=frozenset(knob for knob, name in sizes.items() if name not in fields),
        may={
            "framework": ("trainer", "accelerate", "torch"),
            "precision": ("bf16_mixed",) if fields.flag("bf16") else ("bf16", "fp32"),
            "optimizer": (str(optimizer),),
        },
        layer_classes=classes,
    )


def _sharding(fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Sharding, and checkpointing, which FSDP's options may turn on too."""
    knobs: dict[str, Any] = {"sharding": str(Sharding.DDP), "cpu_offload": False}
    classes: tuple[str, ...] = ()
    if _is_sharded(fields):
        knobs, classes = read_fsdp(fields.part("fsdp_config"), "fsdp_")
    own = fields.any_of("activation_checkpointing", "gradient_checkpointing")
    is_on = "activation_checkpointing" in knobs or fields.flag(own)
    full = Checkpointing.FULL if is_on else Checkpointing.NONE
    return {**knobs, "activation_checkpointing": str(full)}, classes


def _is_sharded(fields: Fields) -> bool:
    """Whether ``fsdp`` is on; as words, they must say what ``fsdp_config`` says."""
    value = fields.values.get("fsdp")
    words = value.split() if isinstance(value, str) else value
    if isinstance(words, list) and words and "true" not in [str(word).lower() for word in words]:
        known = {"full_shard", "shard_grad_op", "auto_wrap", "offload"}
        if set(words) - known:
            raise fields.error("fsdp", f"must be of {', '.join(sorted(known))}")
        _check_words(fields, words)
        return True
    return bool(words) and str(words).lower() != "false"


def _check_words(fields: Fields, words: list[str]) -> None:
    said, _ = read_fsdp(fields.part("fsdp_config"), "fsdp_")
    sharding = "shard_grad_op" if "shard_grad_op" in words else "full_shard"
    if (sharding, "offload" in words) != (said["sharding"], said["cpu_offload"]):
        raise fields.error("fsdp", "does not say what fsdp_config says")
