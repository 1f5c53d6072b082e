"""The twin of settings: a small model trained by few ranks with the same knobs, and its reference.

All twins of a model train on the same sequences, so that one process, with nothing sharded, put
off or computed twice, is the reference of all of them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.cluster import Cluster, Device, Gpu, Link
from tuner.framework import FrameworkName
from tuner.guard.shrink import NoTwinError, small_model
from tuner.rank_spec import rank_spec
from tuner.settings import Settings, Sharding
from tuner.study import Question
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload

GUARD_FORMAT = 3
"""Of what a twin is, of the program that trains it and of how it is judged.

Verdicts of another are of no use. A test holds the digest of all these sources beside it, and says
when to raise it.
"""
GLOBAL_BATCH, ACCUMULATION, SEQUENCE = 24, 3, 32
"""Of every twin: sequences of a step, micro-batches where there are several, tokens."""
STEPS = 4
"""Optimizer steps that are compared. A reused buffer was seen at the second, not at the first."""
DATA_RANKS = 2
"""Data-parallel ranks of a shard group, and replicas of it under ``hybrid_shard``."""
MOST_RANKS = 8
"""Processes of a twin."""
SEED = 11
"""Of weights and tokens."""
STACK = ("torch", "accelerate", "transformers")
"""The packages that a verdict is about."""
STANDS_FOR = {Optimizer.ADAMW_8BIT: Optimizer.ADAMW}
"""What a twin is trained with in the place of an optimizer that it cannot have.

AdamW has the same states and updates as torchao's, in more bits. That is compiled in every rank, in
bf16 not at all where parameters are sharded, and its version is not one of those that a question
states. In fp32 two of its twins agreed within 1.3e-7; they took 80 s, and 32 s with what was
compiled at hand, where eight with AdamW took 32 s (torchao 0.18, torch 2.13, two cores).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A small model, the few ranks that train it, and their settings."""

    workload: Workload
    """The small model, its batch and number formats."""
    cluster: Cluster
    """CPU processes; nodes stand for the groups of ``hybrid_shard``."""
    settings: Settings
    """The knobs under test, with the twin's own sizes."""
    notes: tuple[str, ...] = ()
    """What the twin leaves out."""

    @property
    def reference(self) -> "Twin":
        """One process that trains the same, every knob off, with all sequences in one batch.

        It accumulates nothing: a fault of accumulation must not be in what shows it.
        """
        alone = Settings(micro_batch_size=GLOBAL_BATCH, sync_each_batch=False)
        return replace(self, cluster=_processes(1, 1), settings=alone)

    @property
    def structure(self) -> str:
        """What is tested, in words: settings, ranks, number format."""
        nodes, ranks = self.cluster.nodes, self.cluster.gpus_per_node
        where = f"{nodes}x{ranks} ranks" if nodes > 1 else f"{ranks} ranks"
        return f"{self.settings} on {where} in {self.workload.precision}"

    def spec(self) -> dict[str, Any]:
        """The spec that the probe program reads: all compared steps are tracked, few are timed."""
        return {
            **rank_spec(self.workload, self.settings, self.cluster),
            "memory_limit_bytes": None,
            "seed": SEED,
            "accumulation_counts": [self.settings.gradient_accumulation_steps],
            "warmup_steps": STEPS,
            "tracked_steps": STEPS,
            "measured_steps": 1,
            "minimum_steps": 1,
            "time_budget_s": 1.0,
        }

    def key(self, versions: Mapping[str, str]) -> str:
        """SHA-256, in hex, of all that the twin's verdict depends on."""
        return _hash([GUARD_FORMAT, self.spec(), stack_of(versions)])


def twin_of(question: Question, settings: Settings, precision: Precision | None = None) -> Twin:
    """The twin of settings.

    It has the workload's optimizer, or what stands for it (:data:`STANDS_FOR`), and the settings'
    class: sharding, whether gradients accumulate and when they are synchronized, recomputation and
    checkpointing. ``tp_size`` becomes its smallest prime factor,
    and two data-parallel ranks stand for any number (``hybrid_shard``: two groups of two).

    Args:
        question: whose model and framework.
        settings: legal ones of it.
        precision: number format; fp32 unless given, in which nothing hides a fault.

    Raises:
        NoTwinError: the probe program does not run these settings, or no small model has the
            model's structure.
    """
    if question.framework.name is FrameworkName.NANOTRON or settings.pp_size > 1:
        raise NoTwinError("nanotron is not run here, so nothing of it is trained")
    world_size = question.cluster.world_size
    tp = smallest_factor(settings.tp_size)
    parallel = settings.data_parallel_size(world_size) > 1
    nodes = DATA_RANKS if settings.sharding is Sharding.HYBRID_SHARD else 1
    cluster = _processes(nodes, tp * (DATA_RANKS if parallel else 1))
    if cluster.world_size > MOST_RANKS:
        raise NoTwinError(f"its twin would take {cluster.world_size} ranks, {MOST_RANKS} at most")
    model, notes = small_model(question.workload.model, tp)
    count = ACCUMULATION if settings.gradient_accumulation_steps > 1 else 1
    replicas = cluster.world_size // tp
    return Twin(
        workload=Workload(
            model=model,
            sequence_length=_sequence(tp),
            global_batch_size=GLOBAL_BATCH,
            optimizer=_optimizer(question.workload),
            precision=precision or Precision.FP32,
            reduce_dtype=_reduce_dtype(question.workload, precision),
        ),
        cluster=cluster,
        settings=replace(
            settings,
            tp_size=tp,
            micro_batch_size=GLOBAL_BATCH // replicas // count,
            gradient_accumulation_steps=count,
        ),
        notes=(*notes, *_left_out(question.workload, settings)),
    )


def key_of_probe(
    study_id: str, program: str, settings: Settings, versions: Mapping[str, str]
) -> str:
    """SHA-256, in hex, of what a study's probes of a class have in common, which is kept as the
    verdict on a twin is."""
    accumulates = settings.gradient_accumulation_steps > 1
    settings_class = settings.settings_class.as_dict()
    probed = [study_id, program, settings_class, accumulates, stack_of(versions)]
    return _hash([GUARD_FORMAT, *probed])


def family_of(question: Question) -> str:
    """What all verdicts that may say something of a question share, as SHA-256 in hex.

    That is the small model's structure, without tensor parallelism, the optimizer, and the stack's
    versions.
    Empty where there are no such verdicts: a version of the stack is not known, or there is no
    small model.
    """
    versions = question.framework.versions
    if any(package not in versions for package in STACK):
        return ""
    try:
        model, _ = small_model(question.workload.model, 1)
    except NoTwinError:
        return ""
    optimizer = str(_optimizer(question.workload))
    return _hash([GUARD_FORMAT, model.fingerprint, optimizer, stack_of(versions)])


def stack_of(versions: Mapping[str, str]) -> dict[str, str]:
    """The versions that decide what is trained."""
    return {package: versions[package] for package in STACK if package in versions}


def _processes(nodes: int, ranks_per_node: int) -> Cluster:
    share = Gpu(name="cpu", device=Device.CPU, memory_bytes=2**30)
    return Cluster(
        nodes=nodes, gpus_per_node=ranks_per_node, gpu=share, intra_node=Link(), inter_node=Link()
    )


def _optimizer(workload: Workload) -> Optimizer:
    """The one that twins are trained with."""
    return STANDS_FOR.get(workload.optimizer, workload.optimizer)


def _left_out(workload: Workload, settings: Settings) -> Iterator[str]:
    """What a twin of these shows nothing of, in words."""
    if (own := workload.optimizer) is not (used := _optimizer(workload)):
        yield f"the twin was trained with {used} in the place of {own}"
    if settings.cpu_offload:
        yield "on a CPU cpu_offload is not seen to act, only to train the same"


def _reduce_dtype(workload: Workload, precision: Precision | None) -> ReduceDtype | None:
    """The workload's own beside its number format; in fp32 nothing is rounded more."""
    own = precision is workload.precision and precision is not Precision.FP32
    return workload.reduce_dtype if own else None


def smallest_factor(number: int) -> int:
    """The smallest prime factor of a number above 1; 1 of 1."""
    return next((n for n in range(2, number) if number % n == 0), number)


def _sequence(tp: int) -> int:
    """Tokens: :data:`SEQUENCE`, or a little more where ranks could not share it equally."""
    return -(-SEQUENCE // tp) * tp


def _hash(values: object) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
