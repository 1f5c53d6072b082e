"""What a question's probes of other fidelities say to a search of this one.

They change the order in which settings are tried, never what may be tried: what fits, failed or is
the answer is known from probes of the search's own fidelity alone. NumPy, which is slow to import:
this module is imported where a study has such probes.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from tuner.measurement import CLOSES_CLASS, PROBED, Fidelity
from tuner.planner.candidates import Asked, Shown, with_dry_runs
from tuner.planner.dry_run_classes import dry_run_classes
from tuner.planner.knowledge import Knowledge, learned, outcome_of
from tuner.planner.trials import trials_of
from tuner.search.prior import Prior
from tuner.search.trials import Trial
from tuner.settings import Settings
from tuner.study import Probe, Study

REFUSED = 0.3
"""Part of the probability to run that is left to a class which was refused elsewhere: as much as
one failure leaves to the same settings."""


def informed(prior: Prior, known: Knowledge) -> Prior:
    """The prior with dry runs in the place of arithmetic, and doubt where a class was refused."""
    study = known.study
    prior = with_dry_runs(prior, Asked(study.question, study.calibration), _shown(known.whole))
    refused = {
        probe.request.settings.settings_class
        for probe in _others(known)
        if outcome_of(probe) in CLOSES_CLASS
    }
    return _doubted(prior, refused) if refused else prior


def trials_elsewhere(known: Knowledge) -> list[Trial]:
    """What steps of other fidelities took and needed, as indirect trials.

    Of what ran on a device of another kind the time says nothing, and its memory stays.
    """
    mine = known.study.terms.fidelity
    return [
        replace(trial, indirect=True, seconds=None if is_stand_in else trial.seconds)
        for fidelity in PROBED
        if fidelity is not mine
        for trial, is_stand_in in _trials(known.whole, fidelity)
    ]


def _trials(study: Study, fidelity: Fidelity) -> Iterator[tuple[Trial, bool]]:
    """What probes of one fidelity taught, and whether a device of another kind stood in."""
    if all(probe.request.fidelity is not fidelity for probe in study.probes):
        return
    known = learned(study, fidelity)
    stood_in = {p.request.settings for p in known.study.probes if _stands_in(p)}
    for trial in trials_of(known):
        yield trial, known.space.legal[trial.index] in stood_in


def _stands_in(probe: Probe) -> bool:
    emulation = probe.measurement.emulation if probe.measurement else None
    return emulation is not None and emulation.stands_in


def _others(known: Knowledge) -> Iterator[Probe]:
    mine = known.study.terms.fidelity
    return (p for p in known.whole.probes if p.request.fidelity is not mine)


def _shown(study: Study) -> Shown:
    """What dry runs of the study say of their classes."""
    found = dry_run_classes(study.at(Fidelity.PREDICTED)).profiles
    probes = {key: probe for key, (_, probe) in found.items()}
    return Shown(
        {key: p.measurement.dry_run for key, p in probes.items() if p.measurement},
        {key: profile for key, (profile, _) in found.items()},
    )


def _doubted(prior: Prior, refused: Collection[Settings]) -> Prior:
    hit = np.array([one.settings_class in refused for one in prior.settings])
    return replace(prior, runs=np.where(hit, REFUSED * prior.runs, prior.runs))
