"""Predicts memory, step time and fit of a configuration, or says why nothing is predicted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any

from tuner.catalog.versions import meets
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Basis
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.allocated import AllocatedTensors, Profile, allocated_tensors, is_piped, name_of
from tuner.cost.calibration import Calibration, calibrated, calibrated_text
from tuner.cost.constants import Costs, default_costs
from tuner.cost.device_memory import WORKSPACES, device_terms, workspaces
from tuner.cost.script import PLAIN, Script
from tuner.cost.shards import axis_sizes
from tuner.cost.stages import refused
from tuner.cost.step_time import step_notes, step_time

# Dense decoders with a gated MLP: nanotron's constants are fitted on Llamas.
NANOTRON_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})


def uncovered(workload: Workload, framework: Framework) -> str:
    """Why nothing is known of a workload under a framework; empty where it is covered.

    nanotron's step is not run here. Its constants are fitted on runs in bf16 with AdamW,
    fp32 master weights and fp32 gradients, and say nothing of other formats and optimizers.
    """
    return _uncovered_nanotron(workload) if framework.name is FrameworkName.NANOTRON else ""


def uncovered_settings(
    workload: Workload, framework: Framework, cluster: Cluster, settings: Settings
) -> str:
    """Why nothing is known of settings of a workload that is covered; empty where they are too.

    FSDP2 pads packed experts, and this is counted. FSDP1 does not, for it shards flat parameters;
    nor does FSDP2 with transformers before 5, which keeps the matrices of experts apart.
    """
    experts, ranks = workload.model.experts, axis_sizes(settings, cluster).shard
    if not experts or experts % ranks == 0 or framework.name is FrameworkName.NANOTRON:
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


def _uncovered_nanotron(workload: Workload) -> str:
    model_type = workload.model.model_type
    if model_type not in NANOTRON_MODEL_TYPES:
        covered = ", ".join(sorted(NANOTRON_MODEL_TYPES))
        return f"nanotron is covered for {covered}, and not for {model_type}"
    if workload.precision is not Precision.BF16 or workload.optimizer is not Optimizer.ADAMW:
        asked = f"{workload.precision} with {workload.optimizer}"
        return f"nanotron is covered in bf16 with adamw, and not for {asked}"
    return ""


__all__ = ["HEADROOM", "Prediction", "Profile", "predict", "unknown_prediction"]

# Share of the device's memory that is left free, unless the caller says otherwise.
HEADROOM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One settings' cost on the rank that needs most."""

    breakdown: Mapping[str, float]
    """Bytes by category at the peak; they add up to the value of ``allocated_bytes``."""
    by_phase: Mapping[str, float]
    """Highest allocated bytes of each phase; of nanotron's step, of backward only."""
    basis: Basis
    """What the allocated bytes were computed from."""
    context_bytes: float
    """What the device's context takes beside tensors."""
    communicator_bytes: float
    """What the buffers of the process groups take."""
    allocated_bytes: Quantity
    """Peak of what the allocator gives: to tensors, and to cuBLAS for its workspaces."""
    reserved_bytes: Quantity
    """Peak of what the allocator takes; what fits takes no more than the device has."""
    device_bytes: Quantity
    """What nvidia-smi would show: reserved, CUDA context, communicators' buffers. The same."""
    needed_bytes: Quantity
    """What must be free on a device: allocated, context, communicators, and what nanotron frees too
    late. Its ends are those of the allocated bytes; headroom is for what is not known of the rest.
    It is not cut where the device ends."""
    limit_bytes: float
    """What may be used: the device's memory less the headroom."""
    fits: bool
    """Whether it is expected to run: the value of ``needed_bytes`` is within the limit."""
    why: str
    """Why not, and why a quantity is unknown; empty when it fits and all is known."""
    notes: tuple[str, ...]
    """What a reader should know of the figures."""
    step_time_s: Quantity
    """Seconds of one optimizer step."""
    tokens_per_s_per_gpu: Quantity
    """Tokens of the global batch per second and rank."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "breakdown": dict(self.breakdown),
            "by_phase": dict(self.by_phase),
            "basis": str(self.basis),
            "context_bytes": self.context_bytes,
            "communicator_bytes": self.communicator_bytes,
            "allocated_bytes": self.allocated_bytes.as_dict(),
            "reserved_bytes": self.reserved_bytes.as_dict(),
            "device_bytes": self.device_bytes.as_dict(),
            "needed_bytes": self.needed_bytes.as_dict(),
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "why": self.why,
            "notes": list(self.notes),
            "step_time_s": self.step_time_s.as_dict(),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
        }


def predict(
    workload: Workload,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    settings: Settings,
    *,
    headroom: float = HEADROOM,
    limit_bytes: int | None = None,
    profile: Profile | None = None,
    script: Script = PLAIN,
    calibration: Calibration | None = None,
    costs: Costs | None = None,
) -> Prediction:
    """The cost of legal settings; what :mod:`tuner.space` refuses is not checked again.

    Args:
        workload: what is trained.
        cluster: where.
        framework: with which stack.
        settings: the candidate.
        headroom: share of the device's memory that is left free.
        limit_bytes: what may be used, in the place of memory and headroom.
        profile: dry runs of the settings' class; allocated memory is then theirs.
        script: what the user's loop keeps beside the step.
        calibration: rates measured on such devices; nanotron's constants, which are of runs of its
            own, stay as they are.
        costs: constants, if not the catalogue's.

    Tokens per second count the settings' own batch, so a batch that differs from the workload's is
    priced as it would run. Of settings that are not covered all quantities are unknown.
    """
    costs = default_costs() if costs is None else costs
    limit = cluster.gpu.memory_bytes * (1 - headroom) if limit_bytes is None else limit_bytes
    if reason := _uncovered(workload, framework, cluster, settings):
        return unknown_prediction(limit, reason)
    tensors = allocated_tensors(workload, cluster, framework, settings, costs, profile, script)
    rates = None if is_piped(framework) else calibration
    return _predicted(workload, cluster, framework, settings, tensors, rates, costs, limit)


def _predicted(
    workload: Workload,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    settings: Settings,
    tensors: AllocatedTensors,
    rates: Calibration | None,
    costs: Costs,
    limit: float,
) -> Prediction:
    """Adds what lies beside the tensors, whether all of it fits, and how long a step takes."""
    name, piped = name_of(framework), is_piped(framework)
    never = refused(workload, settings) if piped else ""
    # what nanotron's fitted constants are of holds them already
    cublas = _of(0.0, 1.0, 1.0) if piped else workspaces(cluster.gpu)
    allocated = _sum(tensors.allocated, cublas)
    held = allocated.value or 0.0
    terms = device_terms(settings, cluster, held, framework=framework, costs=costs)
    where, priced = _priced(rates, workload, cluster, costs)
    seconds, unknown = step_time(workload, settings, where, name, priced, fits=not never)
    stalls = step_notes(workload, settings, cluster, name, costs, fits=not never)
    outside = _sum(terms.context, terms.communicators)
    needed = _shifted(allocated, (outside.value or 0.0) + tensors.late_bytes)
    why = never or too_large_text(needed, limit)
    room = inf if why else max(cluster.gpu.memory_bytes, limit)
    free = _of(tensors.late_bytes, 1.0, 1.0) if piped else terms.reserved_free
    return Prediction(
        breakdown=MappingProxyType({**tensors.breakdown, **_named(cublas)}),
        by_phase=MappingProxyType(
            {name: size + (cublas.value or 0.0) for name, size in tensors.by_phase.items()}
        ),
        basis=tensors.basis,
        context_bytes=terms.context.value or 0.0,
        communicator_bytes=terms.communicators.value or 0.0,
        allocated_bytes=allocated,
        reserved_bytes=_within(_sum(allocated, free), room - (outside.low or 0.0)),
        device_bytes=_within(_sum(allocated, free, outside), room),
        needed_bytes=needed,
        limit_bytes=limit,
        fits=not why,
        why="; ".join(filter(None, (why, unknown))),
        notes=(*border_notes(needed, limit), *stalls, *_rates_note(rates, cluster)),
        step_time_s=seconds,
        tokens_per_s_per_gpu=_rate(workload, settings, cluster, seconds),
    )


def _uncovered(
    workload: Workload,
    framework: Framework | FrameworkName,
    cluster: Cluster,
    settings: Settings,
) -> str:
    """Why nothing is known of the settings; a bare name means versions that are covered."""
    if isinstance(framework, FrameworkName):
        return ""
    return uncovered_settings(workload, framework, cluster, settings)


def _priced(
    rates: Calibration | None, workload: Workload, cluster: Cluster, costs: Costs
) -> tuple[Cluster, Costs]:
    """Cluster and constants by which time is priced: with measured rates, where there are any."""
    if rates is None:
        return cluster, costs
    return calibrated(rates, workload.precision, cluster, costs)


def _rates_note(rates: Calibration | None, cluster: Cluster) -> tuple[str, ...]:
    """Says that rates were measured, where they were and are used."""
    return () if rates is None else (calibrated_text(rates, cluster),)


def unknown_prediction(limit: float, why: str) -> Prediction:
    """Makes the prediction of a configuration about which nothing is known, with the reason."""
    return Prediction(
        breakdown=MappingProxyType({}),
        by_phase=MappingProxyType({}),
        basis=Basis.ARITHMETIC,
        context_bytes=0.0,
        communicator_bytes=0.0,
        allocated_bytes=UNKNOWN,
        reserved_bytes=UNKNOWN,
        device_bytes=UNKNOWN,
        needed_bytes=UNKNOWN,
        limit_bytes=limit,
        fits=False,
        why=why,
        notes=(),
        step_time_s=UNKNOWN,
        tokens_per_s_per_gpu=UNKNOWN,
    )


def _rate(workload: Workload, settings: Settings, cluster: Cluster, seconds: Quantity) -> Quantity:
    if seconds.value is None or seconds.low is None or seconds.high is None:
        return UNKNOWN
    sequences = settings.micro_batch_size * settings.gradient_accumulation_steps
    sequences *= settings.data_parallel_size(cluster.world_size)
    tokens = sequences * workload.sequence_length / cluster.world_size
    return Quantity(
        value=tokens / seconds.value,
        low=tokens / seconds.high,
        high=tokens / seconds.low,
        provenance=seconds.provenance,
    )


def too_large_text(needed: Quantity, limit: float) -> str:
    """Says why it does not fit; empty when it does."""
    size = needed.value or 0.0
    return f"needs {size / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB" if size > limit else ""


def border_notes(needed: Quantity, limit: float) -> tuple[str, ...]:
    """Says that the interval leaves open whether it fits; nothing where it does not."""
    low, high = needed.low or 0.0, needed.high or 0.0
    if not low <= limit < high:
        return ()
    sizes = f"{low / 2**30:.1f} to {high / 2**30:.1f} GiB"
    return (f"the limit of {limit / 2**30:.1f} GiB lies within the interval of the need, {sizes}",)


def _within(size: Quantity, room: float) -> Quantity:
    """Not more than there is, for what runs cannot take more."""
    value, low, high = (min(end or 0.0, room) for end in (size.value, size.low, size.high))
    return replace(size, value=value, low=low, high=high)


def _of(value: float, low: float, high: float) -> Quantity:
    return Quantity(
        value=value, low=low * value, high=high * value, provenance=Provenance.PREDICTED
    )


def _shifted(size: Quantity, more: float) -> Quantity:
    """With so much more of which the value is taken."""
    value, low, high = ((end or 0.0) + more for end in (size.value, size.low, size.high))
    return replace(size, value=value, low=low, high=high)


def _named(cublas: Quantity) -> dict[str, float]:
    """Workspaces as a category of memory, where there are any."""
    return {WORKSPACES: cublas.value} if cublas.value else {}


def _sum(*parts: Quantity) -> Quantity:
    """Sums known quantities; the ends are added, as if all were wrong the same way."""
    return Quantity(
        value=sum(part.value or 0.0 for part in parts),
        low=sum(part.low or 0.0 for part in parts),
        high=sum(part.high or 0.0 for part in parts),
        provenance=Provenance.PREDICTED,
    )
