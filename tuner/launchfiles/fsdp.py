"""Settings of FSDP2 and DDP: shared by all formats that reach them."""

from collections.abc import Collection, Mapping
from typing import Any

from tuner.catalog.versions import meets, version_table
from tuner.core.cluster import Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import (
    FOUR_BIT_PACKAGE,
    MUON_BY_TORCH,
    OF_BITSANDBYTES,
    FrameworkName,
)
from tuner.core.script import checkpoints_in_script, is_sharded
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles.contract import reduced_in
from tuner.launchfiles.fields import Fields
from tuner.model import ModelConfig
from tuner.model.fields import ARCHITECTURES, OTHER


def layer_class(model: ModelConfig) -> str:
    """The class of a model's blocks; empty where it is not known."""
    known = model.known_type
    return known.layer if known is not None else ARCHITECTURES.get(model.model_type, OTHER).layer


# Number formats as Python names them.
DTYPES: Mapping[ReduceDtype, str] = {
    ReduceDtype.BF16: "torch.bfloat16",
    ReduceDtype.FP32: "torch.float32",
}

# Optimizers of a model: the module and class, and arguments beside parameters and learning rate.
OPTIMIZERS: Mapping[Optimizer, tuple[str, str, str]] = {
    Optimizer.ADAMW: ("", "torch.optim.AdamW", ""),
    Optimizer.ADAMW_FUSED: ("", "torch.optim.AdamW", ", fused=True"),
    Optimizer.ADAMW_8BIT: ("torchao.optim", "AdamW8bit", ""),
    Optimizer.SGD: ("", "torch.optim.SGD", ""),
    Optimizer.ADAMW_BNB_8BIT: ("bitsandbytes.optim", "AdamW8bit", ""),
    Optimizer.PAGED_ADAMW_8BIT: ("bitsandbytes.optim", "PagedAdamW8bit", ""),
    Optimizer.LION: ("bitsandbytes.optim", "Lion32bit", ""),
    Optimizer.ADAFACTOR: (
        "transformers.optimization", "Adafactor", ", scale_parameter=False, relative_step=False"
    ),
}  # fmt: skip


def optimizer_call(optimizer: Optimizer, rate: str) -> str:
    """The expression that makes a model's optimizer; Muon's is a list."""
    if optimizer is Optimizer.MUON:
        return f"make_optimizers(model, lr={rate})"
    _, name, more = OPTIMIZERS[optimizer]
    return f"{name}(model.parameters(), lr={rate}{more})"


def optimizer_import(optimizer: Optimizer) -> str:
    """The line that imports what torch does not have; empty for its own."""
    module, name, _ = OPTIMIZERS.get(optimizer, ("", "", ""))
    return f"from {module} import {name}" if module else ""


def optimizer_needs(optimizer: Optimizer) -> str:
    """The release that the optimizer needs; empty where any will do."""
    if optimizer is Optimizer.MUON:
        return f"torch {MUON_BY_TORCH.strip('>=')} or newer"
    if optimizer not in OF_BITSANDBYTES:
        return ""
    oldest = version_table().frameworks[FrameworkName.ACCELERATE].oldest[FOUR_BIT_PACKAGE]
    return f"{FOUR_BIT_PACKAGE} {oldest} or newer"


def weights(question: Question) -> ReduceDtype:
    """Number format of weights, and so of gradients."""
    full = question.workload.precision is Precision.BF16
    return ReduceDtype.BF16 if full else ReduceDtype.FP32


def dtype_argument(question: Question) -> str:
    """What ``from_pretrained`` takes the number format of weights by: ``dtype`` from transformers
    4.56 on, and ``torch_dtype`` before, where a model refuses the other (``modeling_utils.py`` in
    the wheels of 4.55.4 and 4.56.0; run with 4.52.4).
    """
    release = question.framework.versions.get("transformers")
    return "torch_dtype" if release is not None and meets(release, "<4.56") else "dtype"


def loaded(question: Question) -> ReduceDtype:
    """Number format that a model is loaded in; what is frozen needs no fp32 where that is mixed."""
    work = question.workload
    if work.adapter is not None and work.precision is Precision.BF16_MIXED:
        return ReduceDtype.BF16
    return weights(question)


def ddp_reduce_dtype(question: Question, settings: Settings) -> ReduceDtype | None:
    """The number format in which DDP must reduce, if it is another than the gradients' own."""
    reduce = reduced_in(question, settings)
    ranks = settings.data_parallel_size(question.cluster.world_size)
    if is_sharded(question, settings) or ranks == 1:
        return None
    return None if reduce is weights(question) else reduce


def policy(question: Question, settings: Settings) -> str:
    """Arguments of FSDP's ``MixedPrecisionPolicy``, as code; empty without FSDP, or where its
    defaults are the probe's.
    """
    if not is_sharded(question, settings):
        return ""
    reduce = reduced_in(question, settings)
    if question.workload.precision is Precision.BF16_MIXED:
        return f"param_dtype=torch.bfloat16, reduce_dtype={DTYPES[reduce]}"
    return "" if reduce is weights(question) else f"reduce_dtype={DTYPES[reduce]}"


def options(question: Question, settings: Settings) -> dict[str, Any]:
    """Options of accelerate's ``FullyShardedDataParallelPlugin``, by its own names."""
    in_file = settings.activation_checkpointing is Checkpointing.FULL
    adapter = question.workload.adapter
    return {
        "version": 2,
        "reshard_after_forward": reshards(settings),
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": layer_class(question.workload.model),
        "activation_checkpointing": in_file and not checkpoints_in_script(question, settings),
        "offload_params": settings.cpu_offload,
        # Of no effect on a step: one rank of a node reads the checkpoint, and hands it out. What is
        # quantized each rank reads itself (``_move_missing_keys_from_meta_to_device`` in
        # transformers/modeling_utils.py, 5.23), and before 1.14 accelerate hands out its scales
        # too, under names that sharded models have not (``fsdp2_load_full_state_dict``; the wheels
        # of 1.6.0 to 1.15.0, read; pull request 3981).
        "cpu_ram_efficient_loading": adapter is None or not adapter.quantizes,
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def ring_variables(question: Question, settings: Settings) -> dict[str, str]:
    """What the Trainer's Accelerator reads of context parallelism, of which no argument tells
    (``Accelerator.__init__`` and parallelism_config.py, accelerate 1.15)."""
    if settings.cp_size == 1:
        return {}
    sizes = {
        "DP_SHARD_SIZE": settings.data_parallel_size(question.cluster.world_size),
        "CP_SIZE": settings.cp_size,
    }
    told = {f"PARALLELISM_CONFIG_{name}": str(size) for name, size in sizes.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **told}


def is_passed_over(question: Question, settings: Settings) -> bool:
    """Tells whether accelerate would not do it at all: on a CPU it ignores FSDP, and refuses
    ``ParallelismConfig`` (``_validate_accelerator`` in parallelism_config.py, 1.15)."""
    on_cpu = question.cluster.gpu.device is Device.CPU
    return on_cpu and (settings.splits_layers or is_sharded(question, settings))


def reshards(settings: Settings) -> bool:
    """Tells whether parameters are given back after forward, to be gathered again in backward."""
    return settings.sharding is not Sharding.SHARD_GRAD_OP


FIGURES = "the figures are of FSDP2's"
FSDP1 = f"FSDP1 keeps flat parameters and rate-limits otherwise: {FIGURES}"
NO_SHARD = "FSDP1's NO_SHARD keeps flat parameters: the figures are of DDP's"
NOT_SAID = "not said"
# Options that FSDP2 has not, which accelerate's ``to-fsdp2`` takes away (``commands/to_fsdp2.py``,
# 1.15), or has other words for.
_OF_FSDP1 = (
    "version", "reshard_after_forward", "sharding_strategy", "backward_prefetch",
    "backward_prefetch_policy", "forward_prefetch", "sync_module_states", "use_orig_params",
    "limit_all_gathers",
)  # fmt: skip
# Of accelerate 1.15's ``FullyShardedDataParallelPlugin``; those of loading and saving, and of
# FSDP1, change nothing here.
KNOWN = frozenset({
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params",
    "activation_checkpointing", "activation_checkpointing_offload", "offload_params",
    "cpu_offload", "cpu_ram_efficient_loading", "state_dict_type", *_OF_FSDP1,
})  # fmt: skip
# FSDP1's strategies in the order of their numbers, from 1 on (``FSDP_SHARDING_STRATEGY`` in
# accelerate's ``utils/constants.py``, 1.15): how one node shards, and whether each does so alone.
_STRATEGIES: Mapping[str, tuple[Sharding, bool]] = {
    "full_shard": (Sharding.FULL_SHARD, False),
    "shard_grad_op": (Sharding.SHARD_GRAD_OP, False),
    "no_shard": (Sharding.DDP, False),
    "hybrid_shard": (Sharding.FULL_SHARD, True),
    "hybrid_shard_zero2": (Sharding.SHARD_GRAD_OP, True),
}
_SPELLED = {
    **_STRATEGIES,
    **{str(number): one for number, one in enumerate(_STRATEGIES.values(), 1)},
    "_hybrid_shard_zero2": _STRATEGIES["hybrid_shard_zero2"],  # torch's own name
    "true": _STRATEGIES["full_shard"],
    "false": _STRATEGIES["shard_grad_op"],
}


def fsdp1_sharding(fields: Fields, words: Collection[str], nodes: int | None) -> Sharding:
    """Finds what is to FSDP2 as FSDP1's strategy is to FSDP1: of an option, or else of ``words``.

    Of how many ``nodes`` a file is may not be known.
    """
    names = ("sharding_strategy", "reshard_after_forward")
    strategy, reshards = (fields.any_of(f"fsdp_{name}", name) for name in names)
    name = strategy if strategy in fields else reshards
    usual = next((word for word in words if word in _STRATEGIES), "full_shard")
    kind, in_groups = fields.choice(name, _SPELLED, usual)
    if reshards == name and name in fields and kind is not Sharding.FULL_SHARD:
        effect = "where FSDP1 shards, accelerate 1.15 passes over it, and does as sharding_strategy"
        fields.pass_over(name, f"{effect} says, or shards wholly: counted as it says")
    if in_groups and nodes is None:
        effect = "of several nodes each shards by itself: counted as if all did together"
        fields.pass_over(name, effect, str(fields.values.get(name, usual)))
    if not in_groups or nodes in (None, 1):
        return kind
    if kind is Sharding.SHARD_GRAD_OP:
        fields.pass_over(name, "keeps parameters until backward: more memory than predicted")
    return Sharding.HYBRID_SHARD


def of_fsdp1(
    before: Mapping[str, Any], after: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Makes of what FSDP2's file would say ``before`` what the file of FSDP1 with ``values`` does.

    All in which the two differ is then a change, also where ``after`` is the same configuration.
    """
    written = Fields(values).part("fsdp_config").values
    options = before.get("fsdp_config") or after.get("fsdp_config") or {}
    prefix = "fsdp_" if any(name.startswith("fsdp_") for name in options) else ""
    if not before.get("fsdp_config"):  # NO_SHARD's: all is new but how it is saved
        saved = {"fsdp_state_dict_type", "state_dict_type"} & written.keys()
        options = {n: one for n, one in options.items() if saved and n.endswith("state_dict_type")}
    kept = {name: one for name, one in options.items() if name[len(prefix) :] not in _OF_FSDP1}
    for name in _OF_FSDP1:
        own = next((one for one in (f"fsdp_{name}", name) if one in written), None)
        if own is not None:
            kept[f"{prefix}{name}"] = written[own]
    top = ("distributed_type", "fsdp", "fsdp_version", "fsdp_config", "parallelism_config")
    said = {name: one for name, one in before.items() if name not in top}
    return {**said, **{n: values[n] for n in top if n in values}, "fsdp_config": kept}


# The first release of accelerate that reads ``activation_checkpointing_offload``
# (``fsdp_utils.py``); 1.14 passes over it.
ON_HOST = ">=1.15"


def read_fsdp(
    fields: Fields, words: Collection[str] = (), nodes: int | None = 1, *, by_release: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Knobs that the options decide, and the classes of the layers that they name.

    Args:
        fields: the options; before each name ``fsdp_`` may stand.
        words: the Trainer's of FSDP1, such as ``full_shard``.
        nodes: how many the file is for.
        by_release: whether newer releases mean FSDP2 where no version is said.

    Raises:
        UsageError: they are of another use of FSDP than is predicted.
    """
    names = {name: fields.any_of(f"fsdp_{name}", name) for name in KNOWN}
    version = fields.whole(names["version"])
    if version not in (None, 1, 2):
        raise fields.error(names["version"], "must be 1 or 2")
    fields.refuse_others({*names.values(), *KNOWN, *(f"fsdp_{name}" for name in KNOWN)})
    wrapped = {"transformer_based_wrap": True}
    fields.choice(names["auto_wrap_policy"], wrapped, "transformer_based_wrap")
    offloads = [fields.flag(names[one]) for one in ("offload_params", "cpu_offload")]
    if version == 2:
        allowed = "is FSDP1's: write fsdp_reshard_after_forward"
        fields.refuse(names["sharding_strategy"], allowed, but=())
        reshards = fields.flag(names["reshard_after_forward"], default=True)
        sharding = Sharding.FULL_SHARD if reshards else Sharding.SHARD_GRAD_OP
    else:
        unsaid = f"older releases of transformers take FSDP1 then: {FIGURES}"
        effect = unsaid if by_release and version is None else FSDP1
        sharding = fsdp1_sharding(fields, words, nodes)
        effect = NO_SHARD if sharding is Sharding.DDP else effect
        fields.pass_over(names["version"], effect, version or NOT_SAID)
        offloads.append("offload" in words)
    knobs: dict[str, Any] = {"sharding": str(sharding), "cpu_offload": any(offloads)}
    on_host = fields.flag(names["activation_checkpointing_offload"])
    if fields.flag(names["activation_checkpointing"]):
        how = Checkpointing.OFFLOAD if on_host else Checkpointing.FULL
        knobs["activation_checkpointing"] = str(how)
    elif on_host:  # as accelerate refuses it
        allowed = "must be false where no layer is checkpointed"
        raise fields.error(names["activation_checkpointing_offload"], allowed)
    named = fields.values.get(names["transformer_layer_cls_to_wrap"]) or []
    words = named if isinstance(named, list) else str(named).split(",")
    return knobs, tuple(str(word).strip() for word in words)
