"""Device memory outside the allocator, as probes of the same machines found it.

The catalogue's sizes of a context and of a communicator are of other machines. A probe that ran
steps shows both together, for as many communicators as its settings have.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.measurement import PROBED, Fidelity, Outcome
from tuner.core.study import Probe, ProbeState, Study
from tuner.cost.constants import default_costs
from tuner.cost.memory.device import communicator_count
from tuner.dryrun import Profile
from tuner.planner.findings import Finding
from tuner.planner.knowledge import TEACHES_NOTHING, Knowledge, learned
from tuner.planner.spending import probes_of_asking


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Device memory outside the allocator, as seen on a cluster."""

    cluster: Cluster
    """Whose devices."""
    by_count: Mapping[int, int] = field(default_factory=dict)
    """The most bytes that a rank had outside its allocator, by its number of communicators."""

    def of(self, settings: Settings) -> int | None:
        """Bytes outside the allocator of settings; ``None`` where nothing was seen.

        Of another number of communicators than was seen, those of the nearest, and for each one
        more or less what the numbers seen differ by, or the catalogue's size where there is one.
        """
        if not self.by_count:
            return None
        count = communicator_count(settings, self.cluster)
        nearest = min(self.by_count, key=lambda known: (abs(known - count), -known))
        apart = count - nearest
        return max(0, int(self.by_count[nearest] + (apart and apart * self._each)))

    @property
    def _each(self) -> float:
        """Bytes of one communicator."""
        least, most = min(self.by_count), max(self.by_count)
        if least == most:
            return default_costs().device.communicator_bytes.value
        return max(0.0, (self.by_count[most] - self.by_count[least]) / (most - least))


def overheads(study: Study) -> Overheads:
    """Collects the overheads that a study's probes saw; those of its past on the same cluster,
    where it has none.

    Measured probes go before emulated ones, whose communicators are the catalogue's.
    """
    cluster = study.question.cluster
    if cluster.gpu.device is not Device.CUDA:
        return Overheads(cluster=cluster)
    alike = [past for past in study.past if past.question.cluster == cluster]
    for fidelity in PROBED:
        for studies in ([study], alike):
            if seen := _by_count(studies, fidelity):
                return Overheads(cluster=cluster, by_count=seen)
    return Overheads(cluster=cluster)


def _by_count(studies: Iterable[Study], fidelity: Fidelity) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for study in studies:
        for probe in study.probes:
            measurement = probe.measurement
            if probe.request.fidelity is not fidelity or measurement is None:
                continue
            emulation, memory = measurement.emulation, measurement.memory
            if memory is None or not memory.overhead_bytes or (emulation and emulation.stands_in):
                continue
            count = communicator_count(probe.request.settings, study.question.cluster)
            found[count] = max(found[count], memory.overhead_bytes)
    return dict(found)


def accident_text(probe: Probe) -> str:
    """Says what came between a dry run and its result."""
    assert probe.measurement is not None
    detail = f" ({probe.measurement.detail})" if probe.measurement.detail else ""
    return f"the dry run of their class ended as {probe.measurement.outcome}{detail}"


# Ends of a dry run that may say more of the machine than of the settings. A later asking wants it
# again, and gets the same at once where it is kept.
MACHINES = TEACHES_NOTHING | {Outcome.TIMEOUT, Outcome.CRASHED}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunClasses:
    """Results of a study's dry runs by layout."""

    profiles: dict[Settings, tuple[Profile, Probe]] = field(default_factory=dict)
    refused: dict[Settings, Probe] = field(default_factory=dict)
    accidents: dict[Settings, Probe] = field(default_factory=dict)


def dry_run_classes(study: Study) -> DryRunClasses:
    """Collects the results of each layout's dry runs; the last holds, and a profile over all."""
    found = DryRunClasses()
    now = {probe.id for probe in probes_of_asking(study)}
    for probe in sorted(study.probes, key=lambda p: p.id):
        measurement = probe.measurement
        if probe.state is not ProbeState.DONE or measurement is None:
            continue
        key = probe.request.settings.settings_class
        if measurement.outcome is Outcome.OK:
            # A dry run that another version wrote is not there: its class is dry-run anew.
            dry_run = study.dry_runs.get(measurement.dry_run)
            if dry_run is not None and dry_run.profile is not None:
                found.profiles[key] = (dry_run.profile, probe)
        elif measurement.outcome not in MACHINES:
            found.refused[key] = probe
        elif probe.id in now:
            # Of these, only what is kept is the stack's own word: it takes too much CPU time.
            (found.refused if measurement.dry_run else found.accidents)[key] = probe
    shown = found.profiles.keys()
    return DryRunClasses(
        profiles=found.profiles,
        refused={key: probe for key, probe in found.refused.items() if key not in shown},
        accidents={
            key: probe
            for key, probe in found.accidents.items()
            if key not in shown and key not in found.refused
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """Corrections of predictions by what a question's probes have shown."""

    factors: Mapping[Settings, float] = field(default_factory=dict)
    """Seconds taken over seconds predicted, by class."""
    typical: float = 1.0
    """The same for classes of which no step was timed."""
    seen: Mapping[Fidelity, Knowledge] = field(default_factory=dict)
    """What probes of each fidelity taught, the stronger first."""
    overheads: Overheads | None = None
    """What devices held outside the allocator."""

    def overhead_bytes(self, settings: Settings) -> int | None:
        """Bytes outside the allocator of settings; ``None`` where none were seen."""
        return self.overheads.of(settings) if self.overheads else None

    def factor(self, settings: Settings) -> float:
        """Factor on the predicted seconds of a step."""
        return self.factors.get(settings.settings_class, self.typical)

    def why_not(self, settings: Settings) -> str:
        """Why settings are no answer, whatever is predicted; the strongest fidelity decides."""
        for fidelity, known in self.seen.items():
            finding = known.findings.get(settings)
            if finding is not None and known.fits(finding):
                return ""
            if known.is_infeasible(settings):
                return f"did not fit when they, or smaller ones, were {fidelity}"
            closed = known.closed_classes.get(settings.settings_class)
            if closed := closed or known.closed.get(settings):
                return f"ended as {closed} when {fidelity}"
        return ""


def corrections(study: Study, predicted_s: Mapping[Settings, float]) -> Corrections:
    """Collects the corrections from a study's probes that ran steps.

    Args:
        study: with the probes of all fidelities.
        predicted_s: seconds of a step; infinite where they are unknown.
    """
    there = {probe.request.fidelity for probe in study.probes}
    seen = {fidelity: learned(study, fidelity) for fidelity in PROBED if fidelity in there}
    taken: dict[Settings, float] = {}
    for known in reversed(seen.values()):  # what was measured replaces what was emulated
        taken |= {s: f.seconds for s, f in known.findings.items() if _tells_time(f)}
    ratios: dict[Settings, list[float]] = defaultdict(list)
    for settings, seconds in taken.items():
        expected = predicted_s.get(settings, inf)
        if 0 < expected < inf:
            ratios[settings.settings_class].append(seconds / expected)
    factors = {key: median(found) for key, found in ratios.items()}
    return Corrections(
        factors=factors,
        typical=median(factors.values()) if factors else 1.0,
        seen=seen,
        overheads=overheads(study),
    )


def _tells_time(finding: Finding) -> bool:
    """Tells whether steps were timed on a device of the cluster's kind."""
    emulations = (p.measurement.emulation for p in finding.probes if p.measurement)
    return finding.seconds < inf and not any(e is not None and e.stands_in for e in emulations)
