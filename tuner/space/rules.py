"""Which values a knob can have, and which combinations are refused."""

from collections.abc import Collection, Mapping
from typing import Any

from tuner.cluster import Device
from tuner.errors import UsageError
from tuner.framework import FrameworkName
from tuner.settings import FSDP, Settings, Sharding
from tuner.space.dead import fixed_by_framework, fixed_tp_size
from tuner.study import Question

SHARDINGS: Mapping[FrameworkName, tuple[Sharding, ...]] = {
    FrameworkName.TORCH: (Sharding.DDP, *FSDP),
    FrameworkName.ACCELERATE: (Sharding.DDP, *FSDP),
    FrameworkName.TRAINER: (Sharding.DDP, *FSDP),
    # nanotron config/config.py: optimizer.zero_stage is 0 or 1.
    FrameworkName.NANOTRON: (Sharding.DDP, Sharding.ZERO1),
}
"""What each framework can split over the data-parallel ranks."""


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def check_possible(question: Question, knob: str, value: Any) -> None:
    """Refuse a value that no settings of this question can have while the knob is live.

    Raises:
        UsageError: with the reason.
    """
    if knob == "sharding":
        _check_sharding(question, value)
    sizes = [(what, size) for what, size in split_by(question, knob) if size % value]
    if sizes:
        wrong = " and ".join(f"{what} ({size})" for what, size in sizes)
        raise UsageError(knob, value, f"must divide {wrong}")
    if knob == "cpu_offload" and value and question.cluster.gpu.device is Device.CPU:
        raise UsageError(knob, "true", "refused on CPUs, where device and host memory are one")


def possible(question: Question, knob: str, values: Collection[Any]) -> tuple[Any, ...]:
    """Those of ``values`` that :func:`check_possible` lets pass."""
    passed = []
    for value in values:
        try:
            check_possible(question, knob, value)
        except UsageError:
            continue
        passed.append(value)
    return tuple(passed)


def split_by(question: Question, knob: str) -> tuple[tuple[str, int], ...]:
    """What a parallel size must divide, by name; nothing for other knobs, or where it is dead.

    Experts are not split by ``tp_size``: each rank runs them on its own tokens.
    """
    model, cluster = question.workload.model, question.cluster
    if knob == "pp_size" and fixed_by_framework(question, knob) is None:
        return ("layers", model.layers), ("GPUs", cluster.world_size)
    if knob != "tp_size" or fixed_tp_size(question) is not None:
        return ()
    has_dense = model.sparse_layers < model.layers
    dense = (("intermediate_size", model.intermediate_size),) if has_dense else ()
    return (
        ("heads", model.heads),
        ("kv_heads", model.kv_heads),
        *dense,
        ("sequence_length", question.workload.sequence_length),
        ("gpus_per_node", cluster.gpus_per_node),
    )


def check_has(question: Question, value: Sharding) -> None:
    """Refuse a sharding that the framework does not have, also where sharding is dead.

    Raises:
        UsageError: with those that it has.
    """
    name = question.framework.name
    if value not in SHARDINGS[name]:
        raise UsageError("sharding", value, f"{name} has {', '.join(SHARDINGS[name])}")


def _check_sharding(question: Question, value: Sharding) -> None:
    check_has(question, value)
    if value is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
        raise UsageError("sharding", value, "needs more than one node: it shards within each")


def broken_rule(question: Question, settings: Settings) -> UsageError | None:
    """The rule that a canonical class breaks, if it does."""
    cluster, tp = question.cluster, settings.tp_size
    if cluster.world_size % (tp * settings.pp_size):
        given = f"{tp} x {settings.pp_size}"
        return UsageError("tp_size x pp_size", given, f"must divide {cluster.world_size} GPUs")
    if settings.sharding is Sharding.HYBRID_SHARD and cluster.gpus_per_node == tp:
        allowed = "needs more than one data-parallel rank in a node"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.cpu_offload and settings.sharding not in FSDP:
        allowed = f"needs a sharding of {', '.join(FSDP)} over several data-parallel ranks"
        return UsageError("cpu_offload", "true", allowed)
    replicas = settings.data_parallel_size(cluster.world_size)
    torch = question.framework.name is not FrameworkName.NANOTRON
    if torch and settings.sharding is Sharding.DDP and replicas > 1 and tp > 1:
        allowed = (
            f"with tp_size {tp} and {replicas} data-parallel ranks it must be one of"
            f" {', '.join(FSDP)}: DistributedDataParallel takes no DTensor parameters"
        )
        return UsageError("sharding", settings.sharding, allowed)
    return None


def enough_micro_batches(settings: Settings, accumulation: int) -> bool:
    """The 1F1B schedule's condition, asserted in nanotron pipeline_parallel/engine.py."""
    return accumulation >= settings.pp_size - 1
