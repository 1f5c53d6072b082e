"""Predicts memory, step time and fit of a configuration, or says why nothing is predicted.

The tensors' peak is from a dry run, or by arithmetic; each with its interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Protocol

from tuner.catalog.versions import meets
from tuner.core.adapter import Quantize
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.framework import NOT_PROBED, Framework, FrameworkName, same_release
from tuner.core.measurement import Basis, Category, Phase
from tuner.core.quantity import Quantity, predicted
from tuner.core.study import HEADROOM
from tuner.core.workload import Loss, Optimizer, Precision, Workload
from tuner.cost.calibration import Calibration, calibrated, calibrated_text
from tuner.cost.constants import Costs, Width, default_costs
from tuner.cost.memory.attention import Backend, attention_of
from tuner.cost.memory.device import (
    NOTHING,
    UNSPLIT,
    WORKSPACES,
    device_terms,
    unsplit_bytes,
    workspaces,
)
from tuner.cost.memory.optimizers import paged_bytes
from tuner.cost.memory.shards import COMPUTE_BYTES, axis_sizes
from tuner.cost.memory.step import StepMemory, step_memory
from tuner.cost.memory.zero import DEFAULTS, stage_of, zero_memory
from tuner.cost.pipeline import refused, stage_memory
from tuner.cost.script import (
    MORE_BYTES_OFF,
    PLAIN,
    Script,
    more_bytes,
    more_seconds,
    runs_liger,
    script_bytes,
)
from tuner.cost.time.compute import TracedStep
from tuner.cost.time.step import step_notes, step_time

# Dense decoders with a gated MLP: nanotron's constants are fitted on Llamas.
NANOTRON_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})


ZERO_NOTE = (
    "no published run of DeepSpeed stands behind these figures: memory is arithmetic from"
    " the source of 0.19.8, held against its own peaks on CPU ranks, and time counts what it sends"
)
RING_NOTE = (
    "ring attention is not probed here: its buffers are those of torch 2.13's own code, its seconds"
    " arithmetic; of torchtitan's published runs with 2, 4 and 8 ranks the first was as fast as"
    " predicted, the others 30% and 35% slower"
)
# Part of what layers in eight bits take more or less by which it may be off: their columns of
# outliers are as many as values make them. A guess: the product of CUDA was not run.
EIGHT_BITS_OFF = 0.1
EIGHT_BIT_NOTE = (
    "layers in eight bits are not run here: their memory is arithmetic from bitsandbytes' source,"
    " with full checkpoints that are reentrant (others do not drop what these layers keep), and"
    " their speed is taken to be that of layers in 16 bits, which is more"
)
LIGER_NOTE = (
    "Liger's loss is not run here: what it takes beyond the probe program's is arithmetic from its"
    " source"
)


def uncovered(workload: Workload, framework: Framework) -> str:
    """Why nothing is known of a workload under a framework; empty where it is covered.

    nanotron's step is not run here. Its constants are fitted on runs in bf16 with AdamW,
    fp32 master weights and fp32 gradients, and say nothing of other formats and optimizers, or
    of another loss than its own. Nor is DeepSpeed's.
    """
    if framework.name not in (FrameworkName.DEEPSPEED, FrameworkName.NANOTRON):
        return ""
    work, model, optimizer = workload, workload.model, workload.optimizer
    types = ", ".join(sorted(NANOTRON_MODEL_TYPES))
    torchs = (Optimizer.ADAMW, Optimizer.ADAMW_FUSED, Optimizer.SGD)
    whys: Mapping[FrameworkName, Mapping[str, object]] = {
        FrameworkName.DEEPSPEED: {
            f"DeepSpeed is covered with torch's AdamW and SGD, and not with {optimizer}":
                optimizer not in torchs,
            f"DeepSpeed is covered by arithmetic, which knows no {model.type_and_task}":
                work.is_traced,
            "DeepSpeed is covered for whole models, and not for adapters":
                work.adapter is not None,
            "DeepSpeed is covered for sequences of one document, and not for packing":
                work.packing is not None,
        },
        FrameworkName.NANOTRON: {
            f"nanotron is covered for {types}, and not for {model.model_type}":
                model.model_type not in NANOTRON_MODEL_TYPES,
            "nanotron is covered in bf16 with adamw, and not for"
            f" {work.precision} with {optimizer}":
                work.precision is not Precision.BF16 or optimizer is not Optimizer.ADAMW,
            "nanotron is covered with sequence parallelism, and not for"
            f" tensor_parallel={work.tensor_parallel}":
                not work.splits_sequence,
            "nanotron trains no adapters": work.adapter is not None,
            "nanotron trains all of a model": work.frozen,
            "nanotron's packing is its own, and not covered": work.packing is not None,
            f"nanotron's loss is its own, and loss={work.loss} would change no figure":
                work.loss is not Loss.HF,
        },
    }  # fmt: skip
    return next((why for why, holds in whys[framework.name].items() if holds), "")


def uncovered_settings(
    workload: Workload, framework: Framework, cluster: Cluster, settings: Settings
) -> str:
    """Why nothing is known of settings of a workload that is covered; empty where they are too.

    FSDP2 pads packed experts, and this is counted. FSDP1 does not, for it shards flat parameters;
    nor does FSDP2 with transformers before 5, which keeps the matrices of experts apart.
    """
    if settings.cp_size > 1:
        attention = attention_of(workload, COMPUTE_BYTES[workload.precision], cluster.gpu)
        if attention.unmasked is Backend.MATH:
            return f"{cluster.gpu.name} has no kernel of ring attention for such heads and numbers"
    experts, ranks = workload.model.experts, axis_sizes(settings, cluster).shard
    if framework.name is FrameworkName.DEEPSPEED and workload.precision is Precision.BF16:
        if not stage_of(settings, cluster):  # by FP16_UnfusedOptimizer, whatever is asked for
            return "without ZeRO, DeepSpeed's bf16 keeps fp32 weights: ask for bf16_mixed"
        if settings.cpu_offload:  # ``_enforce_cpu_offload`` in runtime/zero/stage_1_and_2.py
            return "bf16 on the host needs DeepSpeed's own CPU Adam: ask for bf16_mixed"
    if not experts or experts % ranks == 0 or framework.name in NOT_PROBED:
        return ""
    split = f"splits {experts} experts over {ranks} ranks is not covered"
    if framework.fsdp_version == 1:
        return f"how FSDP1 {split}; FSDP2, of accelerate 1.6 and later, is"
    if "transformers" in framework.versions and meets(framework.versions["transformers"], "<5"):
        return (
            f"how FSDP2 {split} with transformers before 5, which keeps each expert's matrices"
            " apart; with 5 and later, which packs them, it is"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest memory of one optimizer step, as dry runs have it."""

    total_bytes: int  # allocated at the highest moment
    phase: str  # the phase of that moment: forward, loss, backward or optimizer
    by_phase: Mapping[str, int]  # the highest of each phase, in bytes
    breakdown: Mapping[str, int]  # by category at the highest moment; together ``total_bytes``


class Profile(Protocol):
    """Describes what the dry runs of one layout must offer: ``tuner.dryrun.profile`` has it."""

    @property
    def versions(self) -> Mapping[str, str]: ...

    def peak(self, micro_batch_size: int, accumulation: int) -> Peak: ...

    def traced_step(self, micro_batch_size: int, accumulation: int) -> TracedStep | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedTensors:
    """Holds the tensors' peak, before anything that the device holds beside them."""

    by_phase: Mapping[str, float]
    breakdowns: Mapping[str, Mapping[str, float]]
    """Bytes by category at each phase's highest moment; at least of the peak's phase."""
    basis: Basis
    width: Width
    late_bytes: float = 0.0  # freed too late for others to use

    @property
    def allocated(self) -> Quantity:
        value = sum(self.breakdown.values())
        return predicted(value, self.width.low * value, self.width.high * value)

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Bytes by category at the peak; what no category is known of is ``temporaries``."""
        phase = max(self.by_phase, key=lambda phase: self.by_phase[phase])
        known = self.breakdowns.get(phase)
        if known is not None:
            return known
        (least,) = self.breakdowns.values()
        rest = str(Category.TEMPORARIES)
        more = self.by_phase[phase] - sum(least.values())
        return {**least, rest: least.get(rest, 0.0) + more}

    def with_more(self, more: Mapping[str, Mapping[str, float]]) -> "AllocatedTensors":
        """The same with bytes by category that each phase holds beside."""

        def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
            names = dict.fromkeys((*one, *other))
            sizes = {name: one.get(name, 0.0) + other.get(name, 0.0) for name in names}
            return {name: size for name, size in sizes.items() if size}

        return replace(
            self,
            by_phase={p: size + sum(more[p].values()) for p, size in self.by_phase.items()},
            breakdowns={p: added(known, more[p]) for p, known in self.breakdowns.items()},
        )


def _allocated_tensors(
    workload: Workload,
    cluster: Cluster,
    framework: Framework,
    settings: Settings,
    costs: Costs,
    profile: Profile | None,
    script: Script,
) -> AllocatedTensors:
    """The tensors' peak in a step, from a dry run or by arithmetic; as :func:`predict` asks."""
    if framework.name is FrameworkName.NANOTRON:
        return _pipeline_bytes(workload, settings, cluster, costs)
    if framework.name is FrameworkName.DEEPSPEED:
        found = zero_memory(workload, settings, cluster, script.zero or DEFAULTS)
        return _arithmetic(found, costs.memory.zero)
    if profile is not None:
        tensors = _profile_bytes(profile, settings, cluster, framework, costs)
        if workload.is_traced:  # blocks' rests are not known: as wide as arithmetic
            tensors = replace(tensors, width=costs.memory.arithmetic)
            return _in_eight_bits(tensors, workload, settings, cluster)
    else:
        found = step_memory(workload, settings, cluster, 1 + script.selects_every_2nd)
        tensors = _arithmetic(found, costs.memory.arithmetic)
    part = workload.part(settings.cp_size)
    extra = script_bytes(part, settings, axis_sizes(settings, cluster).tp, framework, script)
    if any(size for sizes in extra.values() for size in sizes.values()):
        added = {str(phase): {str(k): v for k, v in more.items()} for phase, more in extra.items()}
        tensors = tensors.with_more(added)
    if runs_liger(settings, framework, script):
        size = more_bytes(part, settings, cluster, framework)
        more = {Phase.LOSS: {Category.LOGITS_AND_LOSS: size}}
        tensors = _beside(tensors, more, {Phase.LOSS: MORE_BYTES_OFF * abs(size)})
    tensors = _in_eight_bits(tensors, workload, settings, cluster)
    unsplit = unsplit_bytes(workload, settings, cluster, tensors.by_phase)
    if not any(unsplit.values()):
        return tensors
    return tensors.with_more({str(phase): {UNSPLIT: size} for phase, size in unsplit.items()})


def _arithmetic(found: StepMemory, width: Width) -> AllocatedTensors:
    return AllocatedTensors(
        by_phase={str(phase): size for phase, size in found.by_phase.items()},
        breakdowns={str(phase): found.breakdown(phase) for phase in found.moments},
        basis=Basis.ARITHMETIC,
        width=width,
    )


def _in_eight_bits(
    tensors: AllocatedTensors, workload: Workload, settings: Settings, cluster: Cluster
) -> AllocatedTensors:
    """The same where a frozen model is in eight bits: dry runs are of one in 16."""
    if workload.adapter is None or not workload.adapter.eight_bits:
        return tensors
    adapter = replace(workload.adapter, modules_to_save=())  # the same in both
    in_8 = replace(workload, adapter=adapter)
    in_16 = replace(workload, adapter=replace(adapter, quantize=Quantize.NF4))
    found, other = (step_memory(one, settings, cluster) for one in (in_8, in_16))
    more: dict[Phase, dict[Category, float]] = {}
    for phase in found.moments:
        sizes, before = found.breakdown(phase), other.breakdown(phase)
        names = (name for name in Category if tensors.basis is Basis.DRY_RUN)
        more[phase] = {name: sizes.get(name, 0.0) - before.get(name, 0.0) for name in names}
    off = {
        phase: EIGHT_BITS_OFF * abs(size - other.by_phase[phase])
        for phase, size in found.by_phase.items()
    }
    return _beside(tensors, more, off)


def _beside(
    tensors: AllocatedTensors,
    more: Mapping[Phase, Mapping[Category, float]],
    off: Mapping[Phase, float],
) -> AllocatedTensors:
    """The same with bytes that only arithmetic knows, which may be ``off`` by so many in a phase:
    what Liger's loss takes beyond the chunked one, and layers in eight bits in the place of 16."""
    each = {p: {str(k): size for k, size in sizes.items()} for p, sizes in more.items()}
    found = tensors.with_more({phase: each.get(Phase(phase), {}) for phase in tensors.by_phase})
    sizes, peak = found.by_phase.items(), max(found.by_phase.values())
    low = max(found.width.low * at - off.get(Phase(phase), 0.0) for phase, at in sizes)
    high = max(found.width.high * at + off.get(Phase(phase), 0.0) for phase, at in sizes)
    return replace(found, width=Width(low / peak, high / peak))


def _pipeline_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> AllocatedTensors:
    """The pipeline stage that needs most, at the peak of its backward."""
    stages = {0, settings.pp_size - 1, max(0, settings.pp_size - 2)}
    each = [stage_memory(workload, settings, cluster, costs, index) for index in sorted(stages)]
    most = max(each, key=lambda stage: stage.reserved_bytes)
    breakdown = {str(category): size for category, size in most.held.items()}
    phase = str(Phase.BACKWARD)
    return AllocatedTensors(
        by_phase={phase: sum(breakdown.values())},
        breakdowns={phase: breakdown},
        basis=Basis.ARITHMETIC,
        width=costs.memory.nanotron,
        late_bytes=most.late_bytes,
    )


def _profile_bytes(
    profile: Profile, settings: Settings, cluster: Cluster, framework: Framework, costs: Costs
) -> AllocatedTensors:
    """A dry run's peak; as wide as arithmetic where it stands in for code that was not run.

    Dry runs are of the installed releases, and of FSDP2.
    """
    ran = profile.versions
    stands_in = (framework.fsdp_version == 1 and axis_sizes(settings, cluster).is_fsdp) or any(
        ran[package] != release and not same_release(ran[package], release)
        for package, release in framework.versions.items()
        if package in ran
    )
    peak = profile.peak(settings.micro_batch_size, settings.gradient_accumulation_steps)
    return AllocatedTensors(
        by_phase={phase: float(size) for phase, size in peak.by_phase.items()},
        breakdowns={peak.phase: {k: float(v) for k, v in peak.breakdown.items()}},
        basis=Basis.DRY_RUN,
        width=costs.memory.arithmetic if stands_in else costs.memory.dry_run,
    )


def predict(
    workload: Workload,
    cluster: Cluster,
    framework: Framework,
    settings: Settings,
    *,
    headroom: float = HEADROOM,
    limit_bytes: int | None = None,
    profile: Profile | None = None,
    script: Script = PLAIN,
    calibration: Calibration | None = None,
    costs: Costs | None = None,
) -> Evaluation:
    """The cost of legal settings on the rank that needs most.

    What :mod:`tuner.space` refuses is not checked again. ``limit_bytes`` is in the place of memory
    and headroom. With a ``profile``, dry runs of the settings' layout, allocated memory is theirs.
    ``script`` says what the user's loop keeps beside the step. Of a ``calibration`` nanotron's
    constants, which are of runs of its own, stay as they are.

    Tokens per second count the settings' own batch, so a batch that differs from the workload's is
    priced as it would run. Of settings that are not covered all quantities are unknown. What must
    be free is not cut where the device ends; what is reserved, and what nvidia-smi shows, is.
    """
    costs = default_costs() if costs is None else costs
    traced = workload.is_traced
    limit = cluster.gpu.memory_bytes * (1 - headroom) if limit_bytes is None else limit_bytes
    if reason := uncovered_settings(workload, framework, cluster, settings):
        return Evaluation(settings=settings, limit_bytes=limit, why=reason)
    if traced and (profile is None or script != PLAIN):
        why = untraced(workload, script)
        return Evaluation(settings=settings, limit_bytes=limit, why=why)
    name, piped = framework.name, framework.name is FrameworkName.NANOTRON
    tensors = _allocated_tensors(workload, cluster, framework, settings, costs, profile, script)
    never = refused(workload, settings) if piped else ""
    # what nanotron's fitted constants are of holds them already
    cublas = NOTHING if piped else workspaces(cluster.gpu)
    cublas_bytes = cublas.value or 0.0
    allocated = _sum(tensors.allocated, cublas)
    held = allocated.value or 0.0
    # of paged state as much is on the device as finds room
    pages = predicted(0.0, 0.0, 0.0 if piped else paged_bytes(workload, cluster))
    terms = device_terms(settings, cluster, held, framework=framework, costs=costs)
    outside = _sum(terms.context, terms.communicators)
    late = tensors.late_bytes
    more = (outside.value or 0.0) + late
    needed = allocated.changed(lambda end: end + more)
    why = never or too_large_text(needed, limit)
    room = inf if why else max(cluster.gpu.memory_bytes, limit)
    free = predicted(late, late, late) if piped else terms.reserved_free

    where, priced = cluster, costs
    rates_note: tuple[str, ...] = ()
    if calibration is not None and not piped:
        where, priced = calibrated(calibration, workload.precision, cluster, costs)
        rates_note = (calibrated_text(calibration, cluster),)
    counted = None
    if traced and profile is not None:
        sizes = settings.micro_batch_size, settings.gradient_accumulation_steps
        counted = profile.traced_step(*sizes)
    seconds, unknown = step_time(
        workload,
        settings,
        where,
        name,
        priced,
        fits=not never,
        traced=counted,
        zero=script.zero or DEFAULTS,
    )
    by_liger = runs_liger(settings, framework, script)
    if by_liger and seconds.value is not None:
        part = workload.part(settings.cp_size)
        more_s = more_seconds(part, settings, where, priced.torch)
        share = 1 + more_s / seconds.value
        seconds = seconds.changed(lambda end: share * end)
    stalls = step_notes(workload, settings, cluster, name, costs, fits=not never)
    sequences = settings.micro_batch_size * settings.gradient_accumulation_steps
    sequences *= settings.data_parallel_size(cluster.world_size)
    tokens = sequences * workload.sequence_length / cluster.world_size
    return Evaluation(
        settings=settings,
        breakdown=MappingProxyType(
            {**tensors.breakdown, **({WORKSPACES: cublas_bytes} if cublas_bytes else {})}
        ),
        by_phase=MappingProxyType({p: size + cublas_bytes for p, size in tensors.by_phase.items()}),
        basis=tensors.basis,
        outside_bytes=outside.value or 0.0,
        context_bytes=terms.context.value or 0.0,
        allocated_bytes=allocated,
        # not more than there is, for what runs cannot take more
        reserved_bytes=_sum(allocated, free).changed(
            lambda end: min(end, room - (outside.low or 0.0))
        ),
        device_bytes=_sum(allocated, free, outside, pages).changed(lambda end: min(end, room)),
        needed_bytes=needed,
        limit_bytes=limit,
        over_bytes=over_bytes(needed, limit),
        fits=not why,
        why="; ".join(filter(None, (why, unknown))),
        notes=(
            *border_notes(needed, limit),
            *stalls,
            *rates_note,
            *[RING_NOTE] * (settings.cp_size > 1),
            *[LIGER_NOTE] * by_liger,
            *[EIGHT_BIT_NOTE] * (workload.adapter is not None and workload.adapter.eight_bits),
            *[ZERO_NOTE] * (name is FrameworkName.DEEPSPEED),
            *[OF_TRACES] * traced,
        ),
        step_time_s=seconds,
        tokens_per_s_per_gpu=seconds.under(tokens),
    )


def untraced(workload: Workload, script: Script = PLAIN) -> str:
    """Why nothing is predicted of a model that only dry runs know, where none is there."""
    what = workload.model.type_and_task if workload.model.is_traced else "what is trained in part"
    kind = f"{what} is known by dry runs alone"
    if script != PLAIN:
        return f"{kind}, which are of a loop that keeps nothing beside the step"
    return f"{kind}, and there is none of these settings"


# Of a model that only dry runs know, beside its figures.
OF_TRACES = (
    "memory, and the operators that time is priced by, are of dry runs of transformers' own class"
    " alone: no arithmetic knows this model type, or what of it is trained"
)


def too_large_text(needed: Quantity, limit: float) -> str:
    """Says why it does not fit; empty when it does."""
    size = needed.value or 0.0
    return f"needs {size / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB" if size > limit else ""


def over_bytes(needed: Quantity, limit: float) -> float | None:
    """By how much it exceeds the limit; ``None`` where it does not."""
    over = int(needed.value or 0.0) - limit
    return over if over > 0 else None


def border_notes(needed: Quantity, limit: float) -> tuple[str, ...]:
    """Says that the interval leaves open whether it fits; nothing where it does not."""
    low, high = needed.low or 0.0, needed.high or 0.0
    if not low <= limit < high:
        return ()
    sizes = f"{low / 2**30:.1f} to {high / 2**30:.1f} GiB"
    return (f"the limit of {limit / 2**30:.1f} GiB lies within the interval of the need, {sizes}",)


def _sum(*parts: Quantity) -> Quantity:
    """Sums known quantities; the ends are added, as if all were wrong the same way."""
    known = [(part.value or 0.0, part.low or 0.0, part.high or 0.0) for part in parts]
    return predicted(*map(sum, zip(*known, strict=True)))
