"""Which specs have no dry run, and by which rule."""

from collections.abc import Callable, Mapping

from workers.probe.spec import Spec


class RefusedError(ValueError):
    """A spec breaks a rule.

    Args:
        rule: its name, one of ``RULES``.
        message: what breaks it.
    """

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


def check(spec: Spec) -> None:
    """Refuse what the program cannot run, or what a dry run would get wrong.

    Raises:
        RefusedError: with the first rule that is broken.
    """
    for rule, message in RULES.items():
        if (complaint := message(spec)) is not None:
            raise RefusedError(rule, complaint)


def _sharding(spec: Spec) -> str | None:
    known = ("ddp", "shard_grad_op", "full_shard", "hybrid_shard")
    return _one_of("settings.sharding", spec.settings.sharding, known)


def _optimizer(spec: Spec) -> str | None:
    return _one_of("optimizer", spec.optimizer, ("adamw", "adamw_8bit", "sgd"))


def _precision(spec: Spec) -> str | None:
    return _one_of("precision", spec.precision, ("bf16", "bf16_mixed", "fp32"))


def _reduce_dtype(spec: Spec) -> str | None:
    return _one_of("reduce_dtype", spec.reduce_dtype, ("bf16", "fp32"))


def _checkpointing(spec: Spec) -> str | None:
    got = spec.settings.activation_checkpointing
    return _one_of("settings.activation_checkpointing", got, ("none", "full"))


def _device(spec: Spec) -> str | None:
    return _one_of("device", spec.device, ("cpu", "cuda"))


def _sizes(spec: Spec) -> str | None:
    sizes = {
        "world_size": spec.world_size,
        "gpus_per_node": spec.gpus_per_node,
        "sequence_length": spec.sequence_length,
        "settings.micro_batch_size": spec.settings.micro_batch_size,
        "settings.tp_size": spec.settings.tp_size,
        "accumulation_counts": min(spec.accumulation_counts),
    }
    wrong = [f"{name} is {size}" for name, size in sizes.items() if size < 1]
    return ", ".join(wrong) + ": must be 1 or more" if wrong else None


def _tensor_parallel(spec: Spec) -> str | None:
    if spec.world_size % spec.settings.tp_size == 0:
        return None
    return f"tp_size {spec.settings.tp_size} does not divide {spec.world_size} ranks"


def _ddp_with_tensor_parallel(spec: Spec) -> str | None:
    knobs = spec.settings
    if knobs.sharding != "ddp" or knobs.tp_size == 1 or spec.data_parallel_size == 1:
        return None
    return "ddp and tensor parallelism are not run together; shard the replicas instead"


def _hybrid(spec: Spec) -> str | None:
    if spec.settings.sharding != "hybrid_shard":
        return None
    if spec.world_size % spec.gpus_per_node or spec.gpus_per_node % spec.settings.tp_size:
        return (
            f"hybrid_shard shards within nodes: {spec.gpus_per_node} ranks of a node must divide "
            f"{spec.world_size} and be divided by tp_size {spec.settings.tp_size}"
        )
    if spec.shard_size == 1:
        return "hybrid_shard needs several data-parallel ranks in a node, to shard over"
    return None


def _cpu_offload(spec: Spec) -> str | None:
    if not spec.settings.cpu_offload or spec.device == "cpu":
        return None
    return (
        "cpu_offload on cuda: fake tensors are all on one device, so what lives in host memory"
        " cannot be told apart"
    )


def _one_of(field: str, got: str, allowed: tuple[str, ...]) -> str | None:
    return None if got in allowed else f"{field} is {got!r}; allowed: {', '.join(allowed)}"


RULES: Mapping[str, Callable[[Spec], str | None]] = {
    "sharding": _sharding,
    "optimizer": _optimizer,
    "precision": _precision,
    "reduce_dtype": _reduce_dtype,
    "activation_checkpointing": _checkpointing,
    "device": _device,
    "sizes": _sizes,
    "tp_size_divides_world_size": _tensor_parallel,
    "ddp_with_tensor_parallel": _ddp_with_tensor_parallel,
    "hybrid_shard_within_nodes": _hybrid,
    "cpu_offload": _cpu_offload,
}
"""Name of each rule, and what it has to say against a spec."""
