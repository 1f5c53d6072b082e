"""What to dry-run for settings: requests to the dry-run program, and the key of their result."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.cluster import Cluster, Device
from tuner.dryrun.depths import at_depth, depths_of
from tuner.framework import Framework, FrameworkName, releases_of
from tuner.rank_spec import attention_backends, rank_spec
from tuner.settings import Settings, Sharding
from tuner.workload import Optimizer, Workload

FORMAT = 3
"""Of what a dry run is asked for and of what is kept of it; part of every key. It is raised when
the dry-run program comes to other figures, so that no old ones are taken for new."""
MICRO_BATCH_SIZES = ((1, 2),)
"""Two points of the straight lines in the micro-batch size."""
TENSOR_PARALLEL_SIZES = ((1,), (2, 3))
"""The same with tensor parallelism. There one sequence is another case than several: what is
gathered along the sequence is in order already, and is not copied."""
ACCUMULATION_COUNTS = (1, 2)
"""Micro-batches of an optimizer step. From the second on they find gradients of those before, and
are all alike: where none but the last reduces, those between need no more than it does."""
PACKAGES = ("torch", "transformers", "accelerate")
"""Packages that a dry run runs; their releases decide what it shows."""
EIGHT_BIT_PACKAGE = "torchao"
"""That an 8-bit optimizer is from."""


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
    """What to ask the dry-run program for one class of settings."""

    key: str
    """SHA-256, in hexadecimal, of all that decides the result."""
    class_settings: Settings
    """The class: its settings with a micro-batch of one sequence and no accumulation."""
    layers: int
    """Decoder layers of the whole model."""
    depths: tuple[int, ...]
    """Decoder layers of the models that are run, ascending."""
    requests: tuple[dict[str, Any], ...]
    """Lines for the dry-run program, as JSON values: one or two for each depth. Their ``id`` is
    the key, the depth and the smallest micro-batch; their ``class``, which shares the limits of
    time, is the key."""


def dry_run_versions() -> dict[str, str]:
    """Releases of the packages that a dry run in this Python's environment runs.

    Every key is made with these (:func:`tuner.framework.releases_of`): ``2.13.0+cpu`` and
    ``2.13.0`` are one.
    """
    return releases_of((*PACKAGES, EIGHT_BIT_PACKAGE))


def missing_package(workload: Workload, versions: Mapping[str, str]) -> str:
    """What is missing for dry runs of a workload, as a clause; empty when all is there."""
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
    known = settings.settings_class
    _check_framework(framework, known)
    _check_class(cluster, known)
    if missing := missing_package(workload, versions):
        raise NotDryRunError(missing)
    key = _key(workload, cluster, known, versions)
    depths = depths_of(workload.model)
    spec = _spec(workload, cluster, known)
    requests = tuple(
        {
            "id": f"{key}:{depth}:{sizes[0]}",
            "class": key,
            "spec": {**spec, "model": at_depth(workload.model, depth)},
            "micro_batch_sizes": list(sizes),
            "accumulation_counts": spec["accumulation_counts"],
        }
        for depth in depths
        for sizes in (TENSOR_PARALLEL_SIZES if known.tp_size > 1 else MICRO_BATCH_SIZES)
    )
    layers = workload.model.layers
    return DryRunPlan(
        key=key, class_settings=known, layers=layers, depths=depths, requests=requests
    )


def _check_framework(framework: Framework, settings: Settings) -> None:
    if framework.name is FrameworkName.NANOTRON:
        raise NotDryRunError("nanotron's step is not one that the dry-run program runs")
    sharded = settings.sharding is not Sharding.DDP
    if sharded and framework.fsdp_version == 1:
        raise NotDryRunError(
            f"{framework.name} shards with FSDP1 in these versions, and the dry-run program"
            " with FSDP2"
        )


def _check_class(cluster: Cluster, settings: Settings) -> None:
    if settings.sharding is Sharding.ZERO1:
        raise NotDryRunError("the dry-run program has no zero1: FSDP2 shards gradients too")
    if settings.pp_size > 1:
        raise NotDryRunError("the dry-run program runs one pipeline stage")
    if settings.cpu_offload:
        where = "host and device memory cannot be told apart on fake tensors"
        if cluster.gpu.device is Device.CPU:
            where = "on CPUs there is nothing to offload to"
        raise NotDryRunError(f"cpu_offload is not dry-run: {where}")


def _packages(workload: Workload) -> tuple[str, ...]:
    eight_bit = workload.optimizer is Optimizer.ADAMW_8BIT
    return (*PACKAGES, EIGHT_BIT_PACKAGE) if eight_bit else PACKAGES


def _key(
    workload: Workload, cluster: Cluster, settings: Settings, versions: Mapping[str, str]
) -> str:
    """Ranks of a node count under hybrid_shard alone: nothing else is split by node."""
    hybrid = settings.sharding is Sharding.HYBRID_SHARD
    decides = {
        "format": FORMAT,
        "model": workload.model.fingerprint,
        "sequence_length": workload.sequence_length,
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "reduce_dtype": str(workload.reduce_dtype),
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node if hybrid else None,
        "device": str(cluster.gpu.device),
        "attention": attention_backends(workload, cluster),
        "settings": settings.as_dict(),
        "versions": {package: versions[package] for package in _packages(workload)},
    }
    text = json.dumps(decides, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _spec(workload: Workload, cluster: Cluster, settings: Settings) -> dict[str, Any]:
    """The ``spec.json`` of the class, with the whole model.

    Fields that say how long to measure, and with which batch, are of no meaning in a dry run.
    """
    counts = ACCUMULATION_COUNTS
    return {
        **rank_spec(workload, replace(settings, gradient_accumulation_steps=counts[-1]), cluster),
        "global_batch_size": settings.data_parallel_size(cluster.world_size) * counts[-1],
        "memory_limit_bytes": None,
        "seed": 0,
        "accumulation_counts": list(counts),
        "warmup_steps": 1,
        "tracked_steps": 1,
        "measured_steps": 0,
        "minimum_steps": 0,
        "time_budget_s": 0.0,
    }
