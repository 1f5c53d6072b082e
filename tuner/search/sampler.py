"""Optuna's sampler that proposes the candidate with the largest expected gain.

Optuna is the engine: it asks this sampler, and is told. Its study lives in memory for one ask and
is replayed from the trials, so nothing needs to be kept in step with it.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.search.features import Mask
from tuner.search.prior import Prior
from tuner.search.proposal import Proposal, is_value, propose
from tuner.search.trials import Past, Result, Trial

CANDIDATE = "candidate"
"""Name of Optuna's only parameter: the index of a candidate."""


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


def _distribution(prior: Prior) -> IntDistribution:
    # Optuna asks no sampler for a parameter of one value.
    return IntDistribution(0, max(len(prior.settings) - 1, 1))


def _frozen(prior: Prior, trial: Trial) -> FrozenTrial:
    """A finished trial as Optuna keeps it; what did not run, or not as here, has no value."""
    ran = is_value(trial)
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
            "is_wrong": trial.is_wrong,
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
        is_wrong=told["is_wrong"],
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
