"""What settings would need and take, predicted: memory, step time, and whether they fit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any, Protocol

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration, calibrated, calibrated_text
from tuner.cost.categories import Basis, Category, Phase
from tuner.cost.constants import Costs, default_costs
from tuner.cost.device_memory import DeviceTerms, device_terms
from tuner.cost.memory import step_memory
from tuner.cost.pipeline_memory import refused, stage_memory
from tuner.cost.script import PLAIN, Script, script_bytes
from tuner.cost.step_time import step_notes, step_time
from tuner.framework import Framework, FrameworkName
from tuner.quantity import UNKNOWN, Provenance, Quantity
from tuner.settings import Settings
from tuner.workload import Workload

HEADROOM = 0.05
"""Share of the device's memory that is left free, unless the caller says otherwise."""


class Peak(Protocol):
    """The most memory that a step needs at once."""

    @property
    def total_bytes(self) -> int:
        """All of it."""

    @property
    def phase(self) -> str:
        """When, as in :class:`~tuner.cost.categories.Phase`."""

    @property
    def by_phase(self) -> Mapping[str, int]:
        """Highest allocated bytes of each phase."""

    @property
    def breakdown(self) -> Mapping[str, int]:
        """Bytes by category at the peak."""


class Profile(Protocol):
    """What the dry runs of one class say about it; see ``tuner.dryrun.profile``."""

    def peak(self, micro_batch_size: int, accumulation: int) -> Peak:
        """The peak of a step of ``accumulation`` micro-batches."""


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
    """Peak of what tensors take; the upper end holds cuBLAS's workspaces too."""
    reserved_bytes: Quantity
    """Peak of what the allocator takes; what fits takes no more than the device has."""
    device_bytes: Quantity
    """What nvidia-smi would show: reserved, CUDA context, communicators' buffers. The same."""
    limit_bytes: float
    """What may be used: the device's memory less the headroom."""
    fits: bool
    """Whether it is expected to run within the limit."""
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
    priced as it would run.
    """
    costs = default_costs() if costs is None else costs
    name, piped = _name(framework), _is_piped(framework)
    limit = cluster.gpu.memory_bytes * (1 - headroom) if limit_bytes is None else limit_bytes
    never = refused(workload, settings) if piped else ""
    tensors = _tensors(workload, cluster, framework, settings, costs, profile, script)
    held = tensors.allocated.value or 0.0
    terms = device_terms(settings, cluster, held, framework=framework, costs=costs)
    allocated = tensors.allocated if piped else _widened(tensors.allocated, terms.workspaces)
    measured: tuple[str, ...] = ()
    where, priced = cluster, costs
    if calibration is not None and not piped:
        where, priced = calibrated(calibration, workload.precision, cluster, costs)
        measured = (calibrated_text(calibration, cluster),)
    seconds, unknown = step_time(workload, settings, where, name, priced, fits=not never)
    stalls = step_notes(workload, settings, cluster, name, costs, fits=not never)
    needed = _needed(tensors, terms)
    why = never or _too_large(needed, limit)
    room = inf if why else max(cluster.gpu.memory_bytes, limit)
    free = _of(tensors.late_bytes, 1.0, 1.0) if piped else terms.reserved_free
    outside = _sum(terms.context, terms.communicators)
    return Prediction(
        breakdown=MappingProxyType(dict(tensors.breakdown)),
        by_phase=MappingProxyType(dict(tensors.by_phase)),
        basis=tensors.basis,
        context_bytes=terms.context.value or 0.0,
        communicator_bytes=terms.communicators.value or 0.0,
        allocated_bytes=allocated,
        reserved_bytes=_within(_sum(allocated, free), room - (outside.low or 0.0)),
        device_bytes=_within(_sum(allocated, free, outside), room),
        limit_bytes=limit,
        fits=not why,
        why="; ".join(filter(None, (why, unknown))),
        notes=(*_border(needed, limit), *stalls, *measured),
        step_time_s=seconds,
        tokens_per_s_per_gpu=_rate(workload, settings, cluster, seconds),
    )


def _tensors(
    workload: Workload,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    settings: Settings,
    costs: Costs,
    profile: Profile | None,
    script: Script,
) -> "_Tensors":
    if _is_piped(framework):
        return _pipeline_bytes(workload, settings, cluster, costs)
    tensors = _torch_bytes(workload, settings, cluster, costs, profile)
    if script == PLAIN:
        return tensors
    return tensors.with_script(script_bytes(workload, settings, framework, script))


def _name(framework: Framework | FrameworkName) -> FrameworkName:
    return framework if isinstance(framework, FrameworkName) else framework.name


def _is_piped(framework: Framework | FrameworkName) -> bool:
    return _name(framework) is FrameworkName.NANOTRON


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensors:
    """What tensors take, before anything that the device holds beside them."""

    by_phase: Mapping[str, float]
    breakdowns: Mapping[str, Mapping[str, float]]
    """Bytes by category at each phase's highest moment; at least of the peak's phase."""
    basis: Basis
    low: float
    """Lower end of the interval, as a factor."""
    high: float
    late_bytes: float = 0.0
    """Freed too late for others to use."""

    @property
    def phase(self) -> str:
        """The phase of the peak."""
        return max(self.by_phase, key=lambda phase: self.by_phase[phase])

    @property
    def allocated(self) -> Quantity:
        """The peak."""
        return _of(sum(self.breakdown.values()), self.low, self.high)

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Bytes by category at the peak; what no category is known of is ``temporaries``."""
        known = self.breakdowns.get(self.phase)
        if known is not None:
            return known
        (least,) = self.breakdowns.values()
        rest = str(Category.TEMPORARIES)
        more = self.by_phase[self.phase] - sum(least.values())
        return {**least, rest: least.get(rest, 0.0) + more}

    def with_script(self, extra: Mapping[Phase, Mapping[Category, float]]) -> "_Tensors":
        """The same with what a script holds in each phase."""
        added = {str(phase): {str(k): v for k, v in more.items()} for phase, more in extra.items()}
        return replace(
            self,
            by_phase={p: size + sum(added[p].values()) for p, size in self.by_phase.items()},
            breakdowns={p: _added(known, added[p]) for p, known in self.breakdowns.items()},
        )


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    names = dict.fromkeys((*one, *other))
    sizes = {name: one.get(name, 0.0) + other.get(name, 0.0) for name in names}
    return {name: size for name, size in sizes.items() if size}


def _pipeline_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> _Tensors:
    """The pipeline stage that needs most, at the peak of its backward."""
    ranks = cluster.world_size
    stages = {0, settings.pp_size - 1, max(0, settings.pp_size - 2)}
    each = [stage_memory(workload, settings, ranks, costs, index) for index in sorted(stages)]
    most = max(each, key=lambda stage: stage.reserved_bytes)
    breakdown = {
        str(Category.PARAMETERS): most.parameters_bytes,
        str(Category.GRADIENTS_UNSHARDED): most.gradients_bytes,
        str(Category.OPTIMIZER_STATE): most.optimizer_bytes,
        str(Category.ACTIVATIONS): most.activations_bytes,
        str(Category.LOGITS_AND_LOSS): most.logits_bytes,
    }
    phase = str(Phase.BACKWARD)
    return _Tensors(
        by_phase={phase: sum(breakdown.values())},
        breakdowns={phase: breakdown},
        basis=Basis.ARITHMETIC,
        low=costs.memory["low"],
        high=costs.memory["high"],
        late_bytes=most.late_bytes,
    )


def _torch_bytes(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    costs: Costs,
    profile: Profile | None,
) -> _Tensors:
    """By the dry run of the settings' class, or by arithmetic where there is none."""
    if profile is not None:
        return _profile_bytes(profile, settings, costs)
    found = step_memory(workload, settings, cluster)
    return _Tensors(
        by_phase={str(phase): size for phase, size in found.by_phase.items()},
        breakdowns={str(phase): found.breakdown(phase) for phase in found.moments},
        basis=Basis.ARITHMETIC,
        low=costs.memory["arithmetic_low"],
        high=costs.memory["arithmetic_high"],
    )


def _profile_bytes(profile: Profile, settings: Settings, costs: Costs) -> _Tensors:
    peak = profile.peak(settings.micro_batch_size, settings.gradient_accumulation_steps)
    return _Tensors(
        by_phase={phase: float(size) for phase, size in peak.by_phase.items()},
        breakdowns={peak.phase: {k: float(v) for k, v in peak.breakdown.items()}},
        basis=Basis.DRY_RUN,
        low=costs.memory["dry_run_low"],
        high=costs.memory["dry_run_high"],
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


def _needed(tensors: _Tensors, terms: DeviceTerms) -> Quantity:
    """What must be free on the device.

    What nanotron frees late cannot be used for anything else; elsewhere reserved memory can.
    """
    late = _of(tensors.late_bytes, 1.0, 1.0)
    return _sum(tensors.allocated, terms.context, terms.communicators, late)


def _too_large(needed: Quantity, limit: float) -> str:
    """Why it does not fit; empty when it does."""
    size = needed.value or 0.0
    return f"needs {size / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB" if size > limit else ""


def _border(needed: Quantity, limit: float) -> tuple[str, ...]:
    """That the interval leaves open whether it fits; nothing where it does not."""
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


def _widened(tensors: Quantity, unseen: Quantity) -> Quantity:
    """With an upper end that holds what is allocated besides, and is in no step's tensors."""
    assert tensors.high is not None
    return replace(tensors, high=tensors.high + (unseen.high or 0.0))


def _sum(*parts: Quantity) -> Quantity:
    """Of known quantities; the ends are added, as if all were wrong the same way."""
    return Quantity(
        value=sum(part.value or 0.0 for part in parts),
        low=sum(part.low or 0.0 for part in parts),
        high=sum(part.high or 0.0 for part in parts),
        provenance=Provenance.PREDICTED,
    )
