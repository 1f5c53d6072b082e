"""Which candidate is worth the next trial: the one with the largest expected gain.

Optuna asks for it (:mod:`tuner.search.sampler`). What is only told of further trials needs no
engine, and takes what is believed already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

import numpy as np

from tuner.search.belief import Belief, believe
from tuner.search.features import Mask
from tuner.search.improvement import HOPEFUL, log_expected_gain, log_expected_speed
from tuner.search.prior import Prior
from tuner.search.trials import Past, Result, Trial


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


def propose(
    prior: Prior, trials: Sequence[Trial], allowed: Mask, past: Past | None = None
) -> Proposal:
    """The allowed candidate with the largest expected gain; the first by order where equal.

    While nothing is known to fit, that with the largest expected speed. Candidates that are hardly
    expected to fit come last, the likeliest first.
    """
    return chosen(prior, believe(prior, trials, past), trials, allowed)


def chosen(prior: Prior, belief: Belief, trials: Sequence[Trial], allowed: Mask) -> Proposal:
    """As :func:`propose`, by what is believed already.

    Args:
        prior: the candidates.
        belief: after the trials.
        trials: of this search.
        allowed: which of them may be proposed; at least one.
    """
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
        if is_value(t) and t.seconds and (t.need_bytes or 0.0) <= limit
    ]
    return min(found, default=None)


def is_value(trial: Trial) -> bool:
    """Whether its seconds are what this search makes small."""
    is_answer = trial.result is Result.RAN and not (trial.indirect or trial.is_wrong)
    return is_answer and trial.seconds is not None
