"""Optuna's sampler that proposes the candidate with the largest expected gain.

Optuna is the engine: it asks this sampler, and is told. Its study lives in memory for one ask and
is replayed from the trials, so nothing needs to be kept in step with it.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.search.belief import believe
from tuner.search.features import Mask
from tuner.search.improvement import HOPEFUL, log_expected_gain, log_expected_speed
from tuner.search.prior import Prior
from tuner.search.trials import Past, Result, Trial

CANDIDATE = "candidate"
"""Name of Optuna's only parameter: the index of a candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to probe next."""

    index: int
    """Which candidate."""
    gain: float
    """Expected gain over the best known, relative; infinite while nothing is known to fit."""
    fits: float
    """Probability that its memory suffices."""
    succeeds: float
    """Probability that it fits and runs."""

    @property
    def is_hopeless(self) -> bool:
        """Whether neither it nor any other is expected to fit."""
        return self.fits < HOPEFUL


class CostModelSampler(BaseSampler):
    """Ranks all candidates by expected gain; of an Optuna study that minimises seconds.

    Args:
        prior: the candidates.
        allowed: which of them may be proposed, shape ``(n,)``, booleans; at least one.
        past: trials of earlier searches.
    """

    def __init__(self, prior: Prior, allowed: Mask, past: Past | None = None) -> None:
        self._prior, self._allowed, self._past = prior, allowed, past
        self.proposal: Proposal | None = None
        """What was sampled last."""

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The one parameter."""
        return {CANDIDATE: _distribution(self._prior)}

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The proposal, from the study's finished trials."""
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
        trials = [_told(one) for one in told]
        self.proposal = propose(self._prior, trials, self._allowed, self._past)
        return {CANDIDATE: self.proposal.index}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """There is no other parameter."""
        raise ValueError(f"{param_name} is not a parameter of this sampler")


def ask(prior: Prior, trials: Sequence[Trial], allowed: Mask, past: Past | None = None) -> Proposal:
    """Ask Optuna for the next candidate, after it was told all trials."""
    sampler = CostModelSampler(prior, allowed, past)
    with quiet():
        study = optuna.create_study(sampler=sampler)
        study.add_trials([_frozen(prior, trial) for trial in trials])
        study.ask({CANDIDATE: _distribution(prior)})
    assert sampler.proposal is not None
    return sampler.proposal


def propose(
    prior: Prior, trials: Sequence[Trial], allowed: Mask, past: Past | None = None
) -> Proposal:
    """The allowed candidate with the largest expected gain; the first by order where equal.

    While nothing is known to fit, that with the largest expected speed. Candidates that are hardly
    expected to fit come last, the likeliest first.
    """
    belief = believe(prior, trials, past)
    best = best_log_seconds(prior, trials)
    if best is None:
        score, gains = log_expected_speed(belief), np.full(len(allowed), inf)
    else:
        score = log_expected_gain(belief, best)
        gains = np.expm1(np.exp(np.minimum(score, 5.0)))
    hopeless = belief.fits < HOPEFUL
    score = np.where(hopeless, -1e6 + np.log(np.maximum(belief.fits, 1e-300)), score)
    # Expectations that differ by less than a percent: the simpler one, then the space's order.
    order = np.lexsort((-prior.simplicity, -score.round(2), ~allowed))
    index = int(order[0])
    return Proposal(
        index=index,
        gain=float(gains[index]),
        fits=float(belief.fits[index]),
        succeeds=float(belief.succeeds[index]),
    )


def best_log_seconds(prior: Prior, trials: Sequence[Trial]) -> float | None:
    """Of the fastest trial of this search that ran within the limit; ``None`` without any."""
    limit = exp(prior.log_limit)
    found = [
        log(t.seconds)
        for t in trials
        if _is_value(t) and t.seconds and (t.need_bytes or 0.0) <= limit
    ]
    return min(found, default=None)


def _is_value(trial: Trial) -> bool:
    """Whether its seconds are what this search makes small."""
    return trial.result is Result.RAN and not trial.indirect and trial.seconds is not None


def _distribution(prior: Prior) -> IntDistribution:
    # Optuna asks no sampler for a parameter of one value.
    return IntDistribution(0, max(len(prior.settings) - 1, 1))


def _frozen(prior: Prior, trial: Trial) -> FrozenTrial:
    """A finished trial as Optuna keeps it; what did not run, or not as here, has no value."""
    ran = _is_value(trial)
    return create_trial(
        state=TrialState.COMPLETE if ran else TrialState.FAIL,
        value=trial.seconds if ran else None,
        params={CANDIDATE: trial.index},
        distributions={CANDIDATE: _distribution(prior)},
        user_attrs={
            "result": trial.result.value,
            "seconds": trial.seconds,
            "error": trial.error,
            "need_bytes": trial.need_bytes,
            "indirect": trial.indirect,
        },
    )


def _told(found: FrozenTrial) -> Trial:
    """The reverse of :func:`_frozen`."""
    told = found.user_attrs
    return Trial(
        index=found.params[CANDIDATE],
        result=Result(told["result"]),
        seconds=told["seconds"],
        error=told["error"],
        need_bytes=told["need_bytes"],
        indirect=told["indirect"],
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna's log lines and warnings of new features are not for our users."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
