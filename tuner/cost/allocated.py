"""Finds the tensors' peak in a step, from a dry run or by arithmetic, with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.framework import Framework, FrameworkName, same_release
from tuner.core.measurement import Basis, Category, Phase
from tuner.core.quantity import Provenance, Quantity
from tuner.core.workload import Workload
from tuner.cost.constants import Costs
from tuner.cost.liger import MORE_BYTES_OFF, more_bytes, runs_liger
from tuner.cost.memory.device import UNSPLIT, unsplit_bytes
from tuner.cost.memory.pipeline import stage_memory
from tuner.cost.memory.shards import axis_sizes, is_fsdp
from tuner.cost.memory.step import step_memory
from tuner.cost.script import Script, script_bytes
from tuner.cost.time.traced import TracedStep


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
    low: float  # lower end of the interval, as a factor
    high: float
    late_bytes: float = 0.0  # freed too late for others to use

    @property
    def allocated(self) -> Quantity:
        value = sum(self.breakdown.values())
        return Quantity(
            value=value,
            low=self.low * value,
            high=self.high * value,
            provenance=Provenance.PREDICTED,
        )

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


def allocated_tensors(
    workload: Workload,
    cluster: Cluster,
    framework: Framework,
    settings: Settings,
    costs: Costs,
    profile: Profile | None,
    script: Script,
) -> AllocatedTensors:
    """The tensors of legal settings; arguments as of :func:`~tuner.cost.prediction.predict`."""
    if framework.name is FrameworkName.NANOTRON:
        return _pipeline_bytes(workload, settings, cluster, costs)
    if profile is not None:
        tensors = _profile_bytes(profile, settings, cluster, framework, costs)
        if workload.is_traced:  # blocks' rests are not known: as wide as arithmetic
            width = costs.memory.arithmetic
            return replace(tensors, low=width.low, high=width.high)
    else:
        found = step_memory(workload, settings, cluster, 1 + script.selects_every_2nd)
        tensors = AllocatedTensors(
            by_phase={str(phase): size for phase, size in found.by_phase.items()},
            breakdowns={str(phase): found.breakdown(phase) for phase in found.moments},
            basis=Basis.ARITHMETIC,
            low=costs.memory.arithmetic.low,
            high=costs.memory.arithmetic.high,
        )
    extra = script_bytes(workload, settings, axis_sizes(settings, cluster).tp, framework, script)
    if any(size for sizes in extra.values() for size in sizes.values()):
        added = {str(phase): {str(k): v for k, v in more.items()} for phase, more in extra.items()}
        tensors = tensors.with_more(added)
    if runs_liger(settings, framework, script):
        tensors = _with_liger(tensors, more_bytes(workload, settings, cluster, framework))
    unsplit = unsplit_bytes(workload, settings, cluster, tensors.by_phase)
    if not any(unsplit.values()):
        return tensors
    return tensors.with_more({str(phase): {UNSPLIT: size} for phase, size in unsplit.items()})


def _with_liger(tensors: AllocatedTensors, size: float) -> AllocatedTensors:
    """The same with what Liger's loss takes beyond the chunked one, as wide as that may be off."""
    loss = str(Phase.LOSS)
    more: dict[str, dict[str, float]] = {phase: {} for phase in tensors.by_phase}
    more[loss] = {str(Category.LOGITS_AND_LOSS): size}
    found = tensors.with_more(more)
    off = {phase: MORE_BYTES_OFF * abs(size) * (phase == loss) for phase in found.by_phase}
    peak = max(found.by_phase.values())
    low = max(found.low * at - off[phase] for phase, at in found.by_phase.items())
    high = max(found.high * at + off[phase] for phase, at in found.by_phase.items())
    return replace(found, low=low / peak, high=high / peak)


def _pipeline_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> AllocatedTensors:
    """The pipeline stage that needs most, at the peak of its backward."""
    stages = {0, settings.pp_size - 1, max(0, settings.pp_size - 2)}
    each = [stage_memory(workload, settings, cluster, costs, index) for index in sorted(stages)]
    most = max(each, key=lambda stage: stage.reserved_bytes)
    breakdown = {
        str(Category.PARAMETERS): most.parameters_bytes,
        str(Category.GRADIENTS_UNSHARDED): most.gradients_bytes,
        str(Category.OPTIMIZER_STATE): most.optimizer_bytes,
        str(Category.ACTIVATIONS): most.activations_bytes,
        str(Category.LOGITS_AND_LOSS): most.logits_bytes,
    }
    phase = str(Phase.BACKWARD)
    return AllocatedTensors(
        by_phase={phase: sum(breakdown.values())},
        breakdowns={phase: breakdown},
        basis=Basis.ARITHMETIC,
        low=costs.memory.low,
        high=costs.memory.high,
        late_bytes=most.late_bytes,
    )


def _profile_bytes(
    profile: Profile,
    settings: Settings,
    cluster: Cluster,
    framework: Framework,
    costs: Costs,
) -> AllocatedTensors:
    """A dry run's peak; as wide as arithmetic where it stands in for code that was not run.

    Dry runs are of the installed releases, and of FSDP2.
    """
    ran = profile.versions
    stands_in = (framework.fsdp_version == 1 and is_fsdp(settings, cluster)) or any(
        ran[package] != release and not same_release(ran[package], release)
        for package, release in framework.versions.items()
        if package in ran
    )
    peak = profile.peak(settings.micro_batch_size, settings.gradient_accumulation_steps)
    width = costs.memory.arithmetic if stands_in else costs.memory.dry_run
    return AllocatedTensors(
        by_phase={phase: float(size) for phase, size in peak.by_phase.items()},
        breakdowns={peak.phase: {k: float(v) for k, v in peak.breakdown.items()}},
        basis=Basis.DRY_RUN,
        low=width.low,
        high=width.high,
    )
