"""Shallow copies of a model: which depths show all its kinds of layers, and their configuration."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from tuner.core.adapter import Adapter, Quantize
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import (
    ADAPTER_PACKAGE,
    EIGHT_BIT_PACKAGE,
    FOUR_BIT_PACKAGE,
    NOT_PROBED,
    Framework,
    packages_beside,
    releases_of,
)
from tuner.core.workload import Workload
from tuner.cost.memory.attention import attention_of
from tuner.cost.memory.shards import COMPUTE_BYTES, axis_sizes, reduced_in
from tuner.model import ModelConfig
from tuner.model.checks import LAYER_NAMES, first_of, text_of
from tuner.model.shape import SLIDING, LayerKind, is_of_each, layer_indices

# Layers of the shallowest copy. The first and the last layer differ from those between them in what
# is gathered and kept around them; with two at each end, one at each is like the others.
SHALLOWEST = 4
# Layers at least between the two depths.
APART = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """How a model's layers follow one another: ``lead``, then periods, then ``tail``."""

    lead: int
    period: int
    tail: int

    @property
    def shallowest(self) -> int:
        """Layers that have, at each end, the odd ones and one whole period more.

        The first and the last layer are odd in every model.
        """
        return max(SHALLOWEST, 2 * (max(self.lead, self.tail, 1) + self.period))


@lru_cache(maxsize=256)
def depths_of(
    model: ModelConfig, checkpointing: Checkpointing = Checkpointing.NONE
) -> tuple[int, ...]:
    """The depths to dry-run, ascending: two shallow ones, or the model's own alone.

    A shallow copy keeps the layers that lead, whole periods of those that alternate, in kind or
    in whether they are checkpointed, and the last ones. The model's own depth is taken where it
    costs no more than the two, or where its layers follow no such pattern.
    """
    pattern = _pattern(model.layer_kinds, checkpointing)
    if pattern is None:
        return (model.layers,)
    low = pattern.shallowest
    low += (model.layers - low) % pattern.period
    high = low + pattern.period * -(-APART // pattern.period)
    return (low, high) if low + high < model.layers else (model.layers,)


def at_depth(
    model: ModelConfig, depth: int, checkpointing: Checkpointing = Checkpointing.NONE
) -> dict[str, Any]:
    """The configuration of ``model`` with ``depth`` of its layers, one of :func:`depths_of`.

    Fields that say something of each layer are cut to the layers that are kept, and those that
    name layers by number are numbered anew.
    """
    config = model.as_config()
    if depth == model.layers:
        return config
    kinds = model.layer_kinds
    pattern = _pattern(kinds, checkpointing)
    assert pattern is not None, "only models with a pattern have shallow copies"
    kept = kinds[: pattern.lead] + kinds[pattern.lead + model.layers - depth :]
    if model.is_traced:
        left_out = range(pattern.lead, pattern.lead + model.layers - depth)
        left = [i for i in range(model.layers) if i not in left_out]
        own: dict[str, Any] = dict(text_of(config)) if "text_config" in config else config
        own[first_of(config, LAYER_NAMES)] = depth
        named = layer_indices(own, model.layers)
        for name, value in list(own.items()):
            if name in named:
                own[name] = [place for place, i in enumerate(left) if i in named[name]]
            elif is_of_each(name, value, model.layers):
                cut = [value[i] for i in left]
                own[name] = "".join(cut) if isinstance(value, str) else cut
        return config if own is config else {**config, "text_config": own}
    config["num_hidden_layers"] = depth
    if "layer_types" in config and any(kind.attention == SLIDING for kind in kinds):
        config["layer_types"] = [kind.attention for kind in kept]
    if "no_rope_layers" in config:
        config["no_rope_layers"] = [int(kind.rotates) for kind in kept]
    if "mlp_only_layers" in config:
        config["decoder_sparse_step"] = 1
        config["mlp_only_layers"] = [i for i, kind in enumerate(kept) if not kind.sparse]
    return config


@lru_cache(maxsize=8)  # a thousand layers take a fifth of a second, and each class asks again
def _pattern(kinds: tuple[LayerKind, ...], checkpointing: Checkpointing) -> _Pattern | None:
    """The pattern with the shallowest copy; ``None`` where no period comes twice."""
    layers = [(kind, checkpointing.of_layer(index)) for index, kind in enumerate(kinds)]
    found = []
    for period in range(1, len(layers) // 2 + 1):
        is_repeated = [one == later for one, later in zip(layers, layers[period:], strict=False)]
        each = groupby(range(len(is_repeated)), key=is_repeated.__getitem__)
        longest = max((list(run) for repeated, run in each if repeated), key=len, default=[])
        if len(longest) >= period:
            tail = len(layers) - period - longest[-1] - 1
            found.append(_Pattern(lead=longest[0], period=period, tail=tail))
    return min(found, key=lambda pattern: pattern.shallowest, default=None)


# Of ``spec.json``; the probe program refuses another.
SPEC_FORMAT = 1


def rank_spec(workload: Workload, settings: Settings, cluster: Cluster) -> dict[str, Any]:
    """The fields of ``spec.json`` that say what is trained, and by which ranks.

    How, and for how long, it is looked at is for who asks to add.
    """
    packing: dict[str, Any] = {}
    if workload.packing is not None:
        row = {"variant": str(workload.packing.variant), "documents": [*workload.row]}
        packing = {"packing": row}
    return {
        "format": SPEC_FORMAT,
        "model": workload.model.as_config(),
        "settings": settings.as_dict(),
        "sequence_length": workload.sequence_length,
        "global_batch_size": workload.global_batch_size,
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "reduce_dtype": str(reduced_in(workload, axis_sizes(settings, cluster))),
        "loss": str(workload.loss),
        "tensor_parallel": str(workload.tensor_parallel),
        **({"adapter": _adapter(workload.adapter)} if workload.adapter is not None else {}),
        **packing,
        **({"frozen": [*workload.frozen]} if workload.frozen else {}),
        **({} if workload.model.is_causal_lm else {"task": str(workload.model.task)}),
        **({"image_tokens": workload.image_tokens} if workload.image_tokens else {}),
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node,
        "device": str(cluster.gpu.device),
        "attention_backends": attention_backends(workload, cluster),
    }


def _adapter(adapter: Adapter) -> dict[str, Any]:
    """What the probe program is told of it; a model in eight bits it has as it is computed with."""
    if adapter.eight_bits:
        adapter = replace(adapter, quantize=Quantize.NF4)
    return adapter.as_dict()


def attention_backends(workload: Workload, cluster: Cluster) -> dict[str, str]:
    """Calls of attention that are computed operator by operator, as the probe program is told."""
    if cluster.gpu.device is not Device.CUDA or workload.model.is_traced:
        return {}
    compute = COMPUTE_BYTES[workload.precision]
    return attention_of(workload, compute, cluster.gpu).by_operators()


# Of what a dry run is asked for and of what is kept of it; part of every key. It is raised when the
# dry-run program comes to other figures, so that no old ones are taken for new.
DRY_RUN_FORMAT = 5
# The same of types that only dry runs know.
TRACED_FORMAT = 8
# Two points of the straight lines in the micro-batch size.
MICRO_BATCH_SIZES = ((1, 2),)
# The same with tensor parallelism. There one sequence is another case than several: what is
# gathered along the sequence is in order already, and is not copied.
TENSOR_PARALLEL_SIZES = ((1,), (2, 3))
# Micro-batches of an optimizer step. From the second on they find gradients of those before, and
# are all alike: where none but the last reduces, those between need no more than it does.
ACCUMULATION_COUNTS = (1, 2)
# Packages that a dry run runs; their releases decide what it shows.
PACKAGES = ("torch", "transformers", "accelerate")
# All that any dry run runs.
ALL_PACKAGES = (*PACKAGES, EIGHT_BIT_PACKAGE, ADAPTER_PACKAGE, FOUR_BIT_PACKAGE)


class NotDryRunError(Exception):
    """Settings that no dry run can show.

    Args:
        reason: a clause that says why, fit to be shown.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunPlan:
    """A request to the dry-run program for one layout."""

    key: str  # SHA-256, in hexadecimal, of all that decides the result
    class_settings: Settings
    """The class: its settings with a micro-batch of one sequence and no accumulation."""
    layers: int  # decoder layers of the whole model
    depths: tuple[int, ...]  # decoder layers of the models that are run, ascending
    requests: tuple[dict[str, Any], ...]
    """Lines for the dry-run program, as JSON values: one or two for each depth. Their ``id`` is
    the key, the depth and the smallest micro-batch; their ``class``, which shares the limits of
    time, is the key. ``copies``, of a type that only dry runs know, lets the program find out
    whether the depths show the whole model; where they do not it runs that in their place.
    ``work``, of such a type too, asks for what its operators do."""


def dry_run_versions() -> dict[str, str]:
    """Releases of the packages that a dry run in this Python's environment runs.

    Every key is made with these (:func:`tuner.core.framework.releases_of`): ``2.13.0+cpu`` and
    ``2.13.0`` are one.
    """
    return releases_of(ALL_PACKAGES)


def missing_package(workload: Workload, versions: Mapping[str, str]) -> str:
    """Names what is missing for dry runs of a workload, as a clause; empty when all is there."""
    missing = next((package for package in _packages(workload) if package not in versions), "")
    return missing and f"{missing} is not installed here, which a dry run needs"


def plan_dry_runs(
    workload: Workload,
    cluster: Cluster,
    framework: Framework,
    settings: Settings,
    versions: Mapping[str, str],
) -> DryRunPlan:
    """The dry runs that show the memory of ``settings`` and of all others of their class.

    Args:
        workload: its global batch size is of no meaning here.
        cluster: its links are of no meaning here, and of its kind of GPU only how torch computes
            attention on it.
        framework: what trains.
        settings: in canonical form (:func:`tuner.space.check_settings`).
        versions: releases, by package, of what is run; usually :func:`dry_run_versions`.

    Raises:
        NotDryRunError: no dry run shows these settings, with the reason.
    """
    known = settings.layout
    if why := _refusal(cluster, framework, known) or missing_package(workload, versions):
        raise NotDryRunError(why)
    key = _key(workload, cluster, known, versions)
    checkpointing = known.activation_checkpointing
    depths = depths_of(workload.model, checkpointing)
    if workload.freezes_layers:  # by their numbers in the whole model
        depths = (workload.model.layers,)
    counts = list(ACCUMULATION_COUNTS)
    # Fields that say how long to measure, and with which batch, are of no meaning in a dry run.
    spec: dict[str, Any] = {
        **rank_spec(workload, replace(known, gradient_accumulation_steps=counts[-1]), cluster),
        "global_batch_size": known.data_parallel_size(cluster.world_size) * counts[-1],
        "memory_limit_bytes": None,
        "seed": 0,
        "accumulation_counts": counts,
        "warmup_steps": 1,
        "tracked_steps": 1,
        "measured_steps": 0,
        "minimum_steps": 0,
        "time_budget_s": 0.0,
    }
    models = [at_depth(workload.model, depth, checkpointing) for depth in depths]
    checked = workload.model.is_traced and len(depths) > 1
    requests = tuple(
        {
            "id": f"{key}:{depth}:{sizes[0]}",
            "class": key,
            "spec": spec | {"model": model},
            **({"copies": [*models, workload.model.as_config()]} if checked else {}),
            **({"work": True} if workload.is_traced else {}),
            "micro_batch_sizes": list(sizes),
            "accumulation_counts": counts,
        }
        for depth, model in zip(depths, models, strict=True)
        for sizes in (
            TENSOR_PARALLEL_SIZES if axis_sizes(known, cluster).tp > 1 else MICRO_BATCH_SIZES
        )
    )
    layers = workload.model.layers
    return DryRunPlan(
        key=key, class_settings=known, layers=layers, depths=depths, requests=requests
    )


def _refusal(cluster: Cluster, framework: Framework, settings: Settings) -> str:
    """Why no dry run shows settings; empty where one does."""
    if framework.name in NOT_PROBED:
        return f"{framework.name}'s step is not one that the dry-run program runs"
    if settings.sharding is not Sharding.DDP and framework.fsdp_version == 1:
        return (
            f"{framework.name} shards with FSDP1 in these versions, and the dry-run program"
            " with FSDP2"
        )
    if settings.sharding is Sharding.ZERO1:
        return "the dry-run program has no zero1: FSDP2 shards gradients too"
    if settings.pp_size > 1:
        return "the dry-run program runs one pipeline stage"
    if settings.cp_size > 1:
        return "the dry-run program splits no sequence over a ring"
    if settings.cpu_offload and cluster.gpu.device is Device.CPU:
        return "cpu_offload is not dry-run: on CPUs there is nothing to offload to"
    if settings.cpu_offload:
        where = "host and device memory cannot be told apart on fake tensors"
        return f"cpu_offload is not dry-run: {where}"
    return ""


def _packages(workload: Workload) -> tuple[str, ...]:
    return (*PACKAGES, *packages_beside(workload))


def _key(
    workload: Workload, cluster: Cluster, settings: Settings, versions: Mapping[str, str]
) -> str:
    """Ranks of a node count under hybrid_shard alone: nothing else is split by node."""
    hybrid = settings.sharding is Sharding.HYBRID_SHARD
    added = workload.added_later()
    if settings.model_parallel_size == 1:  # nothing is split
        added.pop("tensor_parallel", None)
    decides = {
        "format": TRACED_FORMAT if workload.is_traced else DRY_RUN_FORMAT,
        "model": workload.model.fingerprint,
        "sequence_length": workload.sequence_length,
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "reduce_dtype": str(reduced_in(workload, axis_sizes(settings, cluster))),
        **added,
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node if hybrid else None,
        "device": str(cluster.gpu.device),
        "attention": attention_backends(workload, cluster),
        "settings": settings.as_dict(),
        "versions": {package: versions[package] for package in _packages(workload)},
    }
    text = json.dumps(decides, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# Part of a note that all dry runs for GPUs have; it is how they work.
OF_EVERY_ONE = "followed on fake CPU tensors"
# Part of a note that each part of a step may have, of which there are some for each layer.
OF_A_PART = "moments differ between micro-batch sizes"


def told(notes: Sequence[str]) -> tuple[str, ...]:
    """Clauses for people, fit for one answer.

    Args:
        notes: as the dry-run program wrote them (:attr:`tuner.dryrun.Profile.notes`).
    """
    found = [note for note in notes if OF_EVERY_ONE not in note and OF_A_PART not in note]
    if parts := sum(OF_A_PART in note for note in notes):
        where = "one part" if parts == 1 else f"{parts} parts"
        found.append(
            f"in {where} of the step the order of allocations depends on the micro-batch size, so"
            " only the peaks there are followed, from the sizes that were run to others"
        )
    return tuple(found)
