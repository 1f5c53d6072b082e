"""The YAML file of ``accelerate launch --config_file``.

Field names are those of accelerate 1.15: ``ClusterConfig`` in ``commands/config/config_args.py``.
The file says how many processes there are and how they shard; micro-batches and their accumulation
are the script's.
"""

from collections.abc import Mapping
from typing import Any

from tuner.checking.fields import Fields
from tuner.checking.found import Found
from tuner.checking.fsdp import read_fsdp
from tuner.settings import Sharding

NAME = "accelerate"
MARKS = frozenset({"compute_environment", "distributed_type"})
"""Fields that other files do not have."""
KNOWN = frozenset({
    "compute_environment", "distributed_type", "num_machines", "machine_rank", "num_processes",
    "mixed_precision", "use_cpu", "fsdp_config", "parallelism_config", "dynamo_config",
    "dynamo_backend", "debug", "downcast_bf16", "enable_cpu_affinity", "gpu_ids", "main_process_ip",
    "main_process_port", "main_training_function", "rdzv_backend", "same_network", "tpu_env",
    "tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone", "commands", "command_file",
    "deepspeed_config", "megatron_lm_config", "fp8_config", "mpirun_config",
    "num_cpu_threads_per_process",
})  # fmt: skip
KINDS: Mapping[str, Sharding | None] = {
    "no": Sharding.DDP,
    "multi_gpu": Sharding.DDP,
    "multi_cpu": Sharding.DDP,
    "fsdp": None,
}
"""What ``distributed_type`` shards by itself."""
NOT_PREDICTED = ("tp_size", "cp_size", "sp_size")
"""Kinds of parallelism of accelerate's that are not those that are predicted."""
GROUPS = ("dp_replicate_size", "dp_shard_size")
"""Number and size of the groups of ranks that shard."""


def read(values: Mapping[str, Any]) -> Found:
    """What the file says.

    Raises:
        UsageError: a field is wrong, or asks for what is not predicted.
    """
    fields = Fields(values)
    fields.refuse_others(KNOWN)
    if str(fields.values.get("distributed_type")).lower() == "deepspeed":
        raise fields.error("distributed_type", "check DeepSpeed's own JSON in its place")
    kind = fields.choice("distributed_type", KINDS, "no")
    _refuse_others(fields)
    mixed = fields.choice("mixed_precision", {"no": False, "bf16": True}, "no")
    knobs: dict[str, Any] = {"tp_size": 1, "pp_size": 1}
    classes: tuple[str, ...] = ()
    groups = _groups(fields.part("parallelism_config"))
    if kind is None:
        found, classes = read_fsdp(fields.part("fsdp_config"), "fsdp_")
        knobs |= found
        if groups is not None and groups[0] > 1:
            knobs["sharding"] = str(_hybrid(fields, knobs["sharding"]))
    else:
        knobs |= {"sharding": str(kind), "cpu_offload": False}
    return Found(
        format_name=NAME,
        knobs=knobs,
        may={
            "framework": ("accelerate", "trainer", "torch"),
            "precision": ("bf16_mixed",) if mixed else ("bf16", "fp32"),
        },
        ranks=_processes(fields),
        ranks_field="num_processes",
        nodes=None if fields.flag("use_cpu") else fields.whole("num_machines", 1),
        groups=groups if knobs["sharding"] == Sharding.HYBRID_SHARD else None,
        layer_classes=classes,
        needs={"sync_each_batch": "the training script"},
        notes=_notes(knobs),
    )


def _refuse_others(fields: Fields) -> None:
    fields.refuse("fp8_config", "is not predicted")
    fields.refuse("dynamo_backend", "compiled models are not predicted")
    dynamo = fields.part("dynamo_config")
    dynamo.refuse("dynamo_backend", "compiled models are not predicted")
    for name in ("deepspeed_config", "megatron_lm_config"):
        fields.refuse(name, "is of another engine than the file's distributed_type")


def _processes(fields: Fields) -> int | None:
    """How many are started: with ``NO`` one, whatever the file says of their number."""
    size = fields.whole("num_processes", 1)
    if fields.choice("distributed_type", {**dict.fromkeys(KINDS, False), "no": True}, "no"):
        allowed = "must be 1 where distributed_type is NO: accelerate starts no more"
        fields.refuse("num_processes", allowed, but=(1,))
    return size


def _groups(fields: Fields) -> tuple[int, int] | None:
    """Number and size of the groups of ranks that shard."""
    if not fields.values:
        return None
    names = (*NOT_PREDICTED, *GROUPS)
    fields.refuse_misspelt([*names, *(f"parallelism_config_{name}" for name in names)])
    for name in NOT_PREDICTED:
        spelled = fields.any_of(f"parallelism_config_{name}", name)
        fields.refuse(spelled, "must be 1: accelerate's is not predicted")
    sizes = (fields.whole(fields.any_of(f"parallelism_config_{name}", name), 1) for name in GROUPS)
    replicas, shards = (size or 1 for size in sizes)
    return replicas, shards


def _hybrid(fields: Fields, sharding: str) -> Sharding:
    if sharding != Sharding.FULL_SHARD:
        allowed = "must be true where groups of ranks shard: another is not predicted"
        raise fields.part("fsdp_config").error("fsdp_reshard_after_forward", allowed)
    return Sharding.HYBRID_SHARD


def _notes(knobs: Mapping[str, Any]) -> tuple[str, ...]:
    if "activation_checkpointing" in knobs:
        return ()
    return (
        "activation_checkpointing is taken as none, for the file does not turn it on; where the"
        " script does, say --settings activation_checkpointing=full",
    )
