"""A study as an Optuna study: replayed in memory, and asked for the next configuration.

Knobs are its parameters, seconds its objective, memory over the limit its constraint. It lives for
one ask and owns no data: our rows say everything, so nothing needs to be kept in step with it.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from math import inf

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.core.study import SamplerName
from tuner.errors import UsageError
from tuner.search.belief import believe
from tuner.search.gain import HOPEFUL, Proposal, chosen
from tuner.search.kernel import Mask
from tuner.search.sampler import (
    ATTRIBUTES,
    MEMORY,
    RESULT,
    CostModelSampler,
    KnobParameters,
    parameters_of,
)
from tuner.search.trials import Past, Prior, Result, Trial

# Illegal proposals in a row after which a random legal configuration is taken.
MOST_ILLEGAL = 100


def ask(
    prior: Prior,
    trials: Sequence[Trial],
    allowed: Mask,
    past: Past | None = None,
    *,
    sampler: SamplerName = SamplerName.COST_MODEL,
    seed: int = 0,
) -> Proposal:
    """The next candidate, as a sampler proposes it after it was told all trials.

    The expected gain is always the largest that the cost model's belief holds, so that a study
    ends by the same rule whatever proposes.

    Args:
        prior: the candidates.
        trials: of this search.
        allowed: the candidates that may be proposed, shape ``(n,)``, booleans; at least one.
        past: trials of earlier searches; Optuna's own samplers are not told of them.
        sampler: its name.
        seed: of Optuna's own samplers; the same trials and seed give the same proposal.

    Raises:
        UsageError: the sampler cannot run here.
    """
    if sampler is SamplerName.COST_MODEL:
        own = CostModelSampler(prior, allowed, past)
        with quiet():
            own.suggest(replayed(prior, trials, own).ask())
        # A study of one candidate has no parameter, so that nothing was sampled.
        return own.proposal or chosen(prior, believe(prior, trials, past), trials, allowed)
    if why := sampler.why_not_here:
        raise UsageError("sampler", sampler, why)
    belief = believe(prior, trials, past)
    best = chosen(prior, belief, trials, allowed)
    if best.is_hopeless:
        return best
    # None of these is told of the cost model; a probe that is sure to fail would teach them little.
    allowed = allowed & (belief.fits >= HOPEFUL)
    with quiet():
        # The seed moves with the trials: a sampler made anew would repeat its first draw.
        study = replayed(prior, trials, _SAMPLERS[sampler](seed + len(trials)))
        index = _first_legal(study, parameters_of(prior.settings), allowed)
    if index is None:
        random = np.random.default_rng([seed, len(trials)])
        index = int(random.choice(np.flatnonzero(allowed)))
    fits, succeeds = float(belief.fits[index]), float(belief.succeeds[index])
    return replace(best, index=index, fits=fits, succeeds=succeeds)


_SAMPLERS: dict[SamplerName, Callable[[int], BaseSampler]] = {
    SamplerName.TPE: lambda seed: TPESampler(seed=seed),
    SamplerName.GP: lambda seed: GPSampler(seed=seed),
    SamplerName.RANDOM: lambda seed: RandomSampler(seed=seed),
}


def _first_legal(study: optuna.Study, parameters: KnobParameters, allowed: Mask) -> int | None:
    """The first proposal that may be probed; others are told as failed, and cost no probe."""
    for _ in range(MOST_ILLEGAL):
        trial = study.ask()
        index = parameters.suggest(trial)
        if index is not None and allowed[index]:
            return index
        study.tell(trial, state=TrialState.FAIL)
    return None


def replayed(
    prior: Prior, trials: Sequence[Trial], sampler: BaseSampler | None = None
) -> optuna.Study:
    """An Optuna study that was told all trials."""
    study = optuna.create_study(sampler=sampler)
    parameters = parameters_of(prior.settings)
    study.add_trials([frozen_trial(parameters, trial, prior.limit_bytes) for trial in trials])
    return study


class _ReplayedTrial(FrozenTrial):
    """A finished trial, which nobody changes: Optuna's copies of it share what it holds."""

    # Deep copies of 200 trials take longer than all the rest of an ask.
    def __deepcopy__(self, memo: object) -> "_ReplayedTrial":
        copied = object.__new__(_ReplayedTrial)
        copied.__dict__.update(self.__dict__)
        return copied


@lru_cache(maxsize=2048)
def frozen_trial(parameters: KnobParameters, trial: Trial, limit_bytes: float) -> FrozenTrial:
    """A finished trial as Optuna keeps it, with what it has no word for as attributes.

    Nobody may change it: it is kept for the next ask.
    """
    params = parameters.params(trial.index)
    need = trial.need_bytes
    over = 0.0 if need is None or limit_bytes == inf else need - limit_bytes
    if trial.result is Result.TOO_LARGE:
        over = max(over, 1.0)
    # Failed ones are ignored by Optuna's samplers: so they are to do with what is no answer.
    state, reported = TrialState.FAIL, {}
    if trial.is_value:
        state = TrialState.COMPLETE
    elif trial.result in (Result.TOO_LARGE, Result.SLOW) and not trial.indirect:
        state = TrialState.PRUNED
        reported = {0: trial.seconds} if trial.seconds else {}
    made = create_trial(
        state=state,
        value=trial.seconds if trial.is_value else None,
        params=params,
        distributions={knob: parameters.distributions[knob] for knob in params},
        intermediate_values=reported,
        constraints={MEMORY: over},
        user_attrs={RESULT: trial.result.value}
        | {name: getattr(trial, name) for name in ATTRIBUTES},
    )
    kept = object.__new__(_ReplayedTrial)
    kept.__dict__.update(made.__dict__)
    return kept


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
