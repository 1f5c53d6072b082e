"""What other tools say of the memory of one rank, on the same rows.

None of them knows of micro-batches, sequences, activations, deferred synchronisation or what lies
outside the allocator; so each gives one figure for many of our rows. Where a tool does not know
of a dimension that splits the model (tensor and pipeline parallelism), its user is taken to
divide the parameters by it.

Data-parallel ranks divide only what the sharding shards, of the parts that each tool itself tells
apart: optimizer state in ZeRO-1, gradients too in ZeRO-2 (``shard_grad_op``), parameters too in
ZeRO-3 (``full_shard``, and ``hybrid_shard`` within a node), nothing in ZeRO-0 (``ddp``).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.tensors import counts
from tuner.model import ModelConfig

ACCELERATE = "accelerate estimate-memory"
ACCELERATE_SHARDED = "accelerate estimate-memory, sharded parts / ranks"
DEEPSPEED = "DeepSpeed ZeRO estimator"
STATES = "16 bytes per parameter, sharded parts / ranks"
RIVALS = (ACCELERATE, ACCELERATE_SHARDED, DEEPSPEED, STATES)


def estimates(workload: Workload, cluster: Cluster, settings: Settings) -> dict[str, float]:
    parts = settings.tp_size * settings.pp_size
    shards = shard_size(settings, cluster)
    whole = accelerate_figures(workload.model, workload.precision)
    return {
        ACCELERATE: max(whole.values()),
        ACCELERATE_SHARDED: accelerate_sharded(whole, settings.sharding, shards) / parts,
        DEEPSPEED: deepspeed_bytes(workload.model, settings, parts, shards),
        STATES: states_bytes(counts(workload.model).parameters / parts, settings.sharding, shards),
    }


def shard_size(settings: Settings, cluster: Cluster) -> int:
    """Ranks that split what the sharding splits."""
    ranks = settings.data_parallel_size(cluster.world_size)
    if settings.sharding is Sharding.DDP:
        return 1
    return ranks // cluster.nodes if settings.sharding is Sharding.HYBRID_SHARD else ranks


@cache
def accelerate_figures(model: ModelConfig, precision: Precision) -> Mapping[str, float]:
    """``accelerate estimate-memory``'s four figures; "Training using Adam" is the largest.

    Its own functions (accelerate/commands/estimate.py) on the model that it would build:
    ``AutoModel`` in fp32, on the meta device.
    """
    with init_empty_weights():
        built = AutoModel.from_config(_configuration(model))
    total, _ = calculate_maximum_sizes(built)
    dtype = "float32" if precision is Precision.FP32 else "float16"
    return {name: float(size) for name, size in estimate_training_usage(total, dtype).items()}


def accelerate_sharded(whole: Mapping[str, float], sharding: Sharding, shards: int) -> float:
    """The same after sharding, of which the tool knows nothing: each figure divided by itself.

    Its fourth, ``step``, is the sum of the other three in fp32, and optimizer state alone
    otherwise; the parts that it is made of are divided.
    """
    ranks = _divided_by(sharding, shards)
    parts = {name: whole[name] / ranks[name] for name in ranks}
    summed = whole["step"] == sum(whole[name] for name in ranks)
    return max(*parts.values(), sum(parts.values()) if summed else 0.0)


def _divided_by(sharding: Sharding, shards: int) -> dict[str, int]:
    """Ranks that share the parameters, the gradients and the optimizer state."""
    whole = sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)
    gradients = whole or sharding is Sharding.SHARD_GRAD_OP
    return {
        "model": shards if whole else 1,
        "gradients": shards if gradients else 1,
        "optimizer": shards,
    }


def deepspeed_bytes(model: ModelConfig, settings: Settings, parts: int, shards: int) -> float:
    """DeepSpeed's estimate without offload, of the ZeRO stage that the sharding is.

    ``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/stage_1_and_2.py) and
    ``estimate_zero3_model_states_mem_needs`` (.../stage3.py), version 0.19.8. There is none of
    ZeRO 0 and 1: they take the parts that ZeRO 2's comment names (2 bytes of parameters; 6 of
    gradients, in 16 and 32 bits; 12 of fp32 parameters and optimizer state), divided as theirs.
    """
    total, largest = (count / parts for count in _counts(model))
    if settings.sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD):
        return 4 * largest + int(18 * total / shards)
    ranks = _divided_by(settings.sharding, shards)
    return total * (2 + 6 / ranks["gradients"] + 12 / ranks["optimizer"])


def states_bytes(parameters: float, sharding: Sharding, shards: int) -> float:
    """Weights, gradients and Adam's state of mixed precision: 16 bytes per parameter.

    Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054), figure 1: weights 2,
    gradients 2, optimizer 12 bytes; each stage shards one more of them.
    """
    ranks = _divided_by(sharding, shards)
    return parameters * (2 / ranks["model"] + 2 / ranks["gradients"] + 12 / ranks["optimizer"])


@cache
def _counts(model: ModelConfig) -> tuple[int, int]:
    """All parameters, and those of the module that holds most itself (``model_to_params``)."""
    with init_empty_weights():
        built = AutoModelForCausalLM.from_config(_configuration(model))
    built.tie_weights()
    total = sum({id(p): p.numel() for p in built.parameters()}.values())
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in built.modules())
    return total, largest


def _configuration(model: ModelConfig) -> Any:
    fields = model.as_config()
    return cast("Any", AutoConfig).for_model(fields.pop("model_type"), **fields)
