"""A study's search as it stands: what was tried, what is believed, and what to try next.

Probes of other fidelities change the order in which configurations are tried, never what may be
tried: what fits, failed or is the answer is known from probes of the search's own fidelity alone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log
from statistics import median_low

import numpy as np

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import CLOSES_CLASS, PROBED, RAN, TRAINS_WRONGLY, Fidelity, Outcome
from tuner.core.quantity import QUANTILE, Quantity
from tuner.core.workload import Workload
from tuner.cost.memory.step import MemoryBound, memory_bound
from tuner.planner.forecast import Asked, dry_runs_of
from tuner.planner.knowledge import Knowledge, learned, outcome_of
from tuner.planner.prior import prior_of, with_dry_runs
from tuner.planner.ranking import VERIFICATION_STEPS
from tuner.planner.similar import past_of
from tuner.search.belief import Belief, believe, believed_trials
from tuner.search.gain import Proposal, chosen
from tuner.search.kernel import Array, Mask, Rows
from tuner.search.trials import Past, Prior, Result, Trial
from tuner.space import Space
from tuner.text import kept

# Part of the probability to run that is left to a layout which was refused at another fidelity: as
# much as one failure leaves to the same configuration.
REFUSED = 0.3

# Probes of configurations that are not expected to fit, made only when nothing else is left. They
# say what would be needed, in case the prediction is wrong.
LAST_RESORTS = 2


# -- expected memory --------------------------------------------------------------------------


class ExpectedMemory:
    """The memory estimate, corrected by what a study's probes have needed."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        question = known.study.question
        self._workload, self._cluster = question.workload, question.cluster
        # arithmetic says nothing of a user's script, nor of a model that only dry runs know
        self._says_nothing = question.script is not None or question.workload.is_traced

    def bytes_of(self, settings: Settings) -> float:
        """The estimate, scaled by the layout's probes, or else by what is typical so far."""
        factor = self._factors.get(settings.layout, self._typical)
        return factor * self._bound(settings).total_bytes

    def cannot_fit(self, settings: Settings) -> bool:
        """True where arithmetic alone says so."""
        if self._says_nothing:
            return False
        return self._bound(settings).floor_bytes > self._known.limit_bytes

    def smallest(self) -> Evaluation | None:
        """The one that needs least of those that do not fit; ``None`` without any."""
        seen = self._known.too_large.values()
        return min(seen, key=lambda need: (need.most_bytes, need.probes[0].place), default=None)

    def what_is_wrong(self) -> str:
        """Says why configurations that fit are no answer: those that were tried, or else, where
        nothing is left to be tried, those that are expected to fit; empty where no such are known.
        """
        known = self._known
        steps_done = RAN | TRAINS_WRONGLY
        ran = {p.request.settings for p in known.study.probes if outcome_of(p) in steps_done}
        wrong = [one for one in known.wrong if one not in known.infeasible]
        found = [one for one in wrong if one in ran]
        if not found and not known.candidates():
            found = [one for one in wrong if self.is_expected_to_fit(one)]
        return "; ".join(dict.fromkeys(known.wrong[one].why for one in found))

    def is_expected_to_fit(self, settings: Settings) -> bool:
        """True where the estimate is within the limit, or says nothing."""
        return self._says_nothing or self.bytes_of(settings) <= self._known.limit_bytes

    @property
    def fitting(self) -> int:
        """Legal configurations that fit, as far as probes say, and the estimate of the others."""
        known, limit = self._known, self._known.limit_bytes
        ruled_out = known.infeasible
        if self._says_nothing:
            return len(known.space.legal) - len(ruled_out)
        places, fits = known.space.places, np.zeros(len(known.space.legal), dtype=np.bool_)
        by_layout = _by_layout(known.space, self._workload, self._cluster)
        for layout, (rows, totals) in by_layout.items():
            fits[rows] = self._factors.get(layout, self._typical) * totals <= limit
        fits[[places[one] for one in known.findings]] = True
        fits[[places[one] for one in ruled_out]] = False
        return int(fits.sum())

    @cached_property
    def _factors(self) -> dict[Settings, float]:
        """Needed over estimated, by layout; the largest seen."""
        known = self._known
        needed = {**known.too_large, **known.findings}
        found: dict[Settings, float] = {}
        for settings, one in needed.items():
            if settings in known.space.places:
                ratio = one.most_bytes / max(self._bound(settings).total_bytes, 1)
                key = settings.layout
                found[key] = max(ratio, found.get(key, 0.0))
        return found

    @cached_property
    def _typical(self) -> float:
        return median_low(self._factors.values()) if self._factors else 1.0

    def _bound(self, settings: Settings) -> MemoryBound:
        return memory_bound(self._workload, settings, self._cluster)


# What each layout's configurations need by arithmetic, with their places in the space.
@kept(maxsize=8)
def _by_layout(
    space: Space, workload: Workload, cluster: Cluster
) -> Mapping[Settings, tuple[Rows, Array]]:
    places = defaultdict[Settings, list[int]](list)
    for place, settings in enumerate(space.legal):
        places[settings.layout].append(place)
    return {
        layout: (
            np.array(rows, dtype=np.intp),
            np.array([memory_bound(workload, space.legal[n], cluster).total_bytes for n in rows]),
        )
        for layout, rows in places.items()
    }


# -- trials ----------------------------------------------------------------------------------


def trials_of(known: Knowledge) -> list[Trial]:
    """One for each legal configuration that was tried, by their place in the space.

    What was refused, or was counted to train something else, says nothing of others; it is just not
    proposed again. Outcomes that teach nothing are left out. Steps that ran tell the time of others
    even where the configuration was found to be wrong later.
    """
    # A probe has warm-up and timed steps to do at each of its counts, six at least, and the
    # shortest count takes no longer than the configuration's own. Its time is shared among eight,
    # for starting the ranks and building the model take some of it too.
    at_least_s: dict[Settings, float] = {}
    for probe in known.study.probes:
        if probe.measurement and outcome_of(probe) is Outcome.TIMEOUT:
            counts = max(len(probe.request.accumulation_counts), 1)
            seconds = probe.measurement.wall_s / (VERIFICATION_STEPS * counts)
            settings = probe.request.settings
            at_least_s[settings] = max(seconds, at_least_s.get(settings, 0.0))
    told = {*known.findings, *known.too_large, *known.slow, *known.failed, *at_least_s}
    places = known.space.places
    trials = (
        _trial(known, at_least_s, index, known.space.legal[index])
        for index in sorted(places[one] for one in told if one in places)
    )
    return [trial for trial in trials if trial is not None]


def _trial(
    known: Knowledge, at_least_s: Mapping[Settings, float], index: int, settings: Settings
) -> Trial | None:
    need, slow = known.too_large.get(settings), known.slow.get(settings)
    if (finding := known.findings.get(settings)) is not None:
        return Trial(
            index=index,
            result=Result.RAN,
            seconds=finding.step_time_s.value,
            error=_log_error(finding.step_time_s),
            need_bytes=max(finding.most_bytes, need.most_bytes if need else 0),
            is_wrong=settings in known.wrong,
        )
    if slow is not None and slow.needed_bytes.value is not None:
        return Trial(
            index=index,
            result=Result.SLOW,
            seconds=slow.step_time_s.value,
            error=_log_error(slow.step_time_s),
            need_bytes=slow.most_bytes,
        )
    if need is not None:
        return Trial(index=index, result=Result.TOO_LARGE, need_bytes=need.most_bytes)
    if settings in at_least_s:
        seconds = at_least_s[settings] or None
        return Trial(index=index, result=Result.TIMED_OUT, seconds=seconds)
    if settings in known.failed:
        return Trial(index=index, result=Result.FAILED)
    return None


def _log_error(step_time: Quantity) -> float:
    low, high = step_time.low, step_time.high
    return log(high / low) / (2 * QUANTILE) if low and high else 0.0


def trials_of_other_fidelities(known: Knowledge) -> list[Trial]:
    """The times and memory of steps at other fidelities, as indirect trials; a rehearsal's have no
    time."""
    trials = []
    for fidelity in (*PROBED, Fidelity.REHEARSED):
        if fidelity is known.study.limits.fidelity:
            continue
        if all(probe.request.fidelity is not fidelity for probe in known.whole.probes):
            continue
        other = learned(known.whole, fidelity)
        stood_in = set()
        for probe in other.study.probes:
            emulation = probe.measurement.emulation if probe.measurement else None
            if emulation is not None and emulation.stands_in:
                stood_in.add(probe.request.settings)
        for trial in trials_of(other):
            # Of what ran on a device of another kind the time says nothing, and its memory stays.
            is_stand_in = other.space.legal[trial.index] in stood_in
            seconds = None if is_stand_in else trial.seconds
            trials.append(replace(trial, indirect=True, seconds=seconds))
    return trials


def informed(prior: Prior, known: Knowledge) -> Prior:
    """The prior with dry runs in the place of arithmetic, and doubt where a layout was refused."""
    study, whole = known.study, known.whole
    found = dry_runs_of(whole.at(Fidelity.PREDICTED)).profiles
    profiles = {key: profile for key, (profile, _) in found.items()}
    prior = with_dry_runs(prior, Asked(study.question, study.calibration), profiles)
    refused = {
        probe.request.settings.layout
        for probe in whole.probes
        if probe.request.fidelity is not study.limits.fidelity and outcome_of(probe) in CLOSES_CLASS
    }
    if not refused:
        return prior
    hit = np.array([one.layout in refused for one in prior.settings])
    return replace(prior, runs=np.where(hit, REFUSED * prior.runs, prior.runs))


# -- the search -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A configuration that is worth a probe."""

    settings: Settings
    gain: float  # expected gain in speed over the best known, relative; infinite while nothing fits


class Search:
    """Beliefs about the legal configurations, and the one to try next."""

    def __init__(
        self, known: Knowledge, pending: Collection[Settings] = (), *, confirms: bool = False
    ) -> None:
        self._known = known
        self._confirms = confirms and known.unconfirmed.isdisjoint(pending)
        self._pending = frozenset(pending)
        study = known.study
        arithmetic = prior_of(study.question, study.calibration, known.limit_bytes)
        self._is_large = arithmetic.log_need > arithmetic.log_limit
        self.prior, self.trials = arithmetic, trials_of(known)
        if len(known.whole.probes) > len(study.probes):
            self.prior = informed(arithmetic, known)
            self.trials += trials_of_other_fidelities(known)

    @cached_property
    def past(self) -> Past | None:
        return past_of(self._known.study.past, self._known.study.calibration)

    @cached_property
    def belief(self) -> Belief:
        """Expectations for the legal configurations, in the space's order."""
        return believe(self.prior, self.trials, self.past)

    @cached_property
    def allowed(self) -> Mask:
        """Marks the legal configurations that may be probed: untried, and not ruled out."""
        places, memory = self._known.space.places, ExpectedMemory(self._known)
        allowed = np.zeros(len(places), dtype=np.bool_)
        allowed[[places[one] for one in self._candidates()]] = True
        for place in np.flatnonzero(allowed & self._is_large).tolist():
            allowed[place] = not memory.cannot_fit(self.prior.settings[place])
        return allowed

    def propose(self) -> Proposed | None:
        """The most promising configuration; ``None`` when none is worth a probe."""
        from tuner.search.engine import ask  # imports Optuna, which is slow

        if not self.allowed.any():
            return self._last_resort()
        study, told = self._known.study, list(self.trials)
        if self._pending:
            pending = (n for n, one in enumerate(self.prior.settings) if one in self._pending)
            told += believed_trials(self.belief, pending)
        sampler, seed = study.limits.sampler, study.seed
        return self._proposed(
            ask(self.prior, told, self.allowed, self.past, sampler=sampler, seed=seed)
        )

    def expect(self) -> Proposed | None:
        """Returns what :meth:`propose` would, by the model at hand: for what is said of more
        probes."""
        assert not self._pending
        if not self.allowed.any():
            return self._last_resort()
        return self._proposed(chosen(self.prior, self.belief, self.trials, self.allowed))

    def _proposed(self, found: Proposal) -> Proposed | None:
        if found.is_hopeless:
            return self._last_resort()
        return Proposed(settings=self.prior.settings[found.index], gain=found.gain)

    def _candidates(self) -> list[Settings]:
        unconfirmed = frozenset() if self._confirms else self._known.unconfirmed
        return self._known.candidates(but=self._pending | unconfirmed)

    def _last_resort(self) -> Proposed | None:
        """The smallest of what is not expected to fit, while nothing is known to fit.

        Each is waited for: it may show that others fit.
        """
        known, candidates = self._known, self._candidates()
        tried = known.tried - known.wrong.keys()  # those fit, and say nothing of what is needed
        if self._pending or known.fitting or len(tried) >= LAST_RESORTS or not candidates:
            return None
        needs = dict(zip(self.prior.settings, self.belief.log_need.tolist(), strict=True))
        smallest = min(candidates, key=lambda one: (needs[one], str(one)))
        return Proposed(settings=smallest, gain=inf)
