"""What probes that ran steps say of predictions: how long steps took, what did not run, and what
devices hold beside tensors.

A prediction of the settings like those that were run is off by as much: their class by its own
probes, all others by what is typical, so that the same error moves all of them together.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import median

from tuner.measurement import PROBED, Fidelity
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.overheads import Overheads, overheads
from tuner.settings import Settings
from tuner.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """What was seen of a question's settings."""

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
        """What the predicted seconds of a step are multiplied by."""
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
    """What a study's probes that ran steps say of its predictions.

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
    """Whether steps were timed on a device of the cluster's kind."""
    emulations = (p.measurement.emulation for p in finding.probes if p.measurement)
    return finding.seconds < inf and not any(e is not None and e.stands_in for e in emulations)
