"""What the dry runs of a study say of their classes: a profile, a refusal, or an accident."""

from dataclasses import dataclass, field

from tuner.dryrun import Profile
from tuner.measurement import Outcome
from tuner.planner.knowledge import TEACHES_NOTHING
from tuner.planner.spending import probes_of_asking
from tuner.settings import Settings
from tuner.study import Probe, ProbeState, Study


def accident_text(probe: Probe) -> str:
    """What came between a dry run and its result."""
    assert probe.measurement is not None
    detail = f" ({probe.measurement.detail})" if probe.measurement.detail else ""
    return f"the dry run of their class ended as {probe.measurement.outcome}{detail}"


MACHINES = TEACHES_NOTHING | {Outcome.TIMEOUT, Outcome.CRASHED}
"""Ends of a dry run that may say more of the machine than of the settings. A later asking wants it
again, and gets the same at once where it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunClasses:
    """What a study's dry runs say of their classes."""

    profiles: dict[Settings, tuple[Profile, Probe]] = field(default_factory=dict)
    refused: dict[Settings, Probe] = field(default_factory=dict)
    accidents: dict[Settings, Probe] = field(default_factory=dict)


def dry_run_classes(study: Study) -> DryRunClasses:
    """What the dry runs of each class say; the last word on it holds, and a profile over all."""
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
