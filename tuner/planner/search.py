"""Chooses the next probe for its own sake, also by probes of other fidelities.

They change the order in which settings are tried, never what may be tried: what fits, failed or is
the answer is known from probes of the search's own fidelity alone. NumPy, which is slow to import:
this module is imported where a study has such probes.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tuner.core.configuration import Settings
from tuner.core.measurement import CLOSES_CLASS, PROBED, Fidelity
from tuner.core.study import Probe, Study
from tuner.planner.candidates import Asked, Shown, with_dry_runs
from tuner.planner.corrections import dry_run_classes
from tuner.planner.expected_memory import MemoryOutlook
from tuner.planner.knowledge import Knowledge, learned, outcome_of
from tuner.planner.trials import trials_of
from tuner.search.trials import Prior, Trial

if TYPE_CHECKING:
    from tuner.search.belief import Belief
    from tuner.search.gain import Proposal
    from tuner.search.kernel import Mask
    from tuner.search.trials import Past


# Part of the probability to run that is left to a class which was refused elsewhere: as much as one
# failure leaves to the same settings.
REFUSED = 0.3


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
    """Turns the times and memory of steps at other fidelities into indirect trials.

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
    """Turns probes of one fidelity into trials, and says if a device of another kind stood in."""
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
    """Collects the results of the study's dry runs by layout."""
    found = dry_run_classes(study.at(Fidelity.PREDICTED)).profiles
    probes = {key: probe for key, (_, probe) in found.items()}
    return Shown(
        {key: p.measurement.dry_run for key, p in probes.items() if p.measurement},
        {key: profile for key, (profile, _) in found.items()},
    )


def _doubted(prior: Prior, refused: Collection[Settings]) -> Prior:
    hit = np.array([one.settings_class in refused for one in prior.settings])
    return replace(prior, runs=np.where(hit, REFUSED * prior.runs, prior.runs))


# Probes of settings that are not expected to fit, made only when nothing else is left.
#
# They say what would be needed, in case the prediction is wrong.
LAST_RESORTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """Settings that are worth a probe."""

    settings: Settings
    """Which."""
    gain: float
    """Expected gain in speed over the best known, relative; infinite while nothing fits."""
    succeeds: float
    """Probability that they fit and run."""


class Search:
    """A study's search as it stands: what is believed, and what to try next.

    NumPy and Optuna are imported by what is asked for, for they are slow to import.
    """

    def __init__(
        self, known: Knowledge, pending: Collection[Settings] = (), *, confirms: bool = False
    ) -> None:
        """A search.

        Args:
            known: what the probes that are done have taught.
            pending: settings of probes on their way. The next one is chosen as if each had taken
                what is believed of it, so that it is not one more of the same (the "Kriging
                believer" of Ginsbourger, Le Riche and Carraro 2010).
            confirms: whether settings may be tried whose knob was wrong in another layout; one at
                a time.
        """
        self._known = known
        self._confirms = confirms and known.unconfirmed.isdisjoint(pending)
        self._pending = frozenset(pending)

    @cached_property
    def prior(self) -> "Prior":
        """Predictions of the legal configurations, in the space's order."""
        if not self.asked_elsewhere:
            return self._arithmetic

        return informed(self._arithmetic, self._known)

    @cached_property
    def trials(self) -> "list[Trial]":
        """Trials so far, also at other fidelities."""
        from tuner.planner.trials import trials_of

        mine = trials_of(self._known)
        if not self.asked_elsewhere:
            return mine

        return [*mine, *trials_elsewhere(self._known)]

    @property
    def asked_elsewhere(self) -> bool:
        """Tells whether there are probes of other fidelities."""
        return len(self._known.whole.probes) > len(self._known.study.probes)

    @cached_property
    def _arithmetic(self) -> "Prior":
        from tuner.planner.candidates import prior_of

        study = self._known.study
        return prior_of(study.question, study.calibration, self._known.limit_bytes)

    @cached_property
    def past(self) -> "Past | None":
        """Trials of earlier studies."""
        from tuner.planner.similar import past_of

        return past_of(self._known.study)

    @cached_property
    def belief(self) -> "Belief":
        """Expectations for the legal configurations, in the space's order."""
        from tuner.search.belief import believe

        return believe(self.prior, self.trials, self.past)

    @cached_property
    def allowed(self) -> "Mask":
        """Marks the legal configurations that may be probed: untried, and not ruled out."""
        import numpy as np

        candidates, outlook = set(self._candidates()), MemoryOutlook(self._known)
        large = self._arithmetic.log_need > self._arithmetic.log_limit
        return np.array(
            [
                one in candidates and not (is_large and outlook.cannot_fit(one))
                for one, is_large in zip(self.prior.settings, large, strict=True)
            ]
        )

    def propose(self) -> Proposed | None:
        """The most promising settings; ``None`` when none are worth a probe."""
        from tuner.search.engine import ask

        if not self.allowed.any():
            return self._last_resort()
        told = [*self.trials, *self._lies()]
        study = self._known.study
        proposal = ask(
            self.prior,
            told,
            self.allowed,
            self.past,
            sampler=study.terms.sampler,
            seed=study.seed,
        )
        return self._proposed(proposal)

    def expect(self) -> Proposed | None:
        """Returns what :meth:`propose` would, by the model at hand: for what is said of more
        probes.
        """
        from tuner.search.gain import chosen

        assert not self._pending
        if not self.allowed.any():
            return self._last_resort()
        return self._proposed(chosen(self.prior, self.belief, self.trials, self.allowed))

    def _proposed(self, found: "Proposal") -> Proposed | None:
        if found.is_hopeless:
            return self._last_resort()
        settings = self.prior.settings[found.index]
        return Proposed(settings=settings, gain=found.gain, succeeds=found.succeeds)

    def _candidates(self) -> list[Settings]:
        left = [one for one in self._known.candidates() if one not in self._pending]
        return left if self._confirms else [s for s in left if s not in self._known.unconfirmed]

    def _lies(self) -> "list[Trial]":
        """Fills in expected results of the probes on their way, as if they had been seen."""
        from tuner.search.belief import believed_trials

        pending = (n for n, one in enumerate(self.prior.settings) if one in self._pending)
        return believed_trials(self.belief, pending) if self._pending else []

    def _last_resort(self) -> Proposed | None:
        """The smallest of what is not expected to fit, while nothing is known to fit.

        Each is waited for: it may show that others fit.
        """
        known, candidates = self._known, self._candidates()
        tried = known.tried - known.wrong.keys()  # those fit, and say nothing of what is needed
        if self._pending or known.fitting or len(tried) >= LAST_RESORTS:
            return None
        if not candidates:
            return None
        needs = dict(zip(self.prior.settings, self.belief.log_need.tolist(), strict=True))
        smallest = min(candidates, key=lambda one: (needs[one], str(one)))
        return Proposed(settings=smallest, gain=float("inf"), succeeds=0.0)


def propose(known: Knowledge, pending: Collection[Settings] = ()) -> Proposed | None:
    """The settings to probe next, or ``None`` when none are worth it; see :class:`Search`."""
    return Search(known, pending, confirms=True).propose()
