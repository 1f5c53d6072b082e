"""The expected gain of a probe over the best that is known, and the candidate with the largest."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, pi

import numpy as np

from tuner.search.belief import Belief, normal_cdf
from tuner.search.kernel import Array, Mask
from tuner.search.trials import Prior, Trial

# Standard deviations beyond which the tail's expansion is used.
FAR = 6.0
# Probability to fit below which a candidate is proposed only where all others are below it too.
HOPEFUL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The candidate to probe next."""

    index: int
    gain: float
    """Expected gain over the best known, relative; infinite while nothing is known to fit."""
    fits: float
    succeeds: float

    @property
    def is_hopeless(self) -> bool:
        """Neither it nor any other is expected to fit."""
        return self.fits < HOPEFUL


def chosen(prior: Prior, belief: Belief, trials: Sequence[Trial], allowed: Mask) -> Proposal:
    """The allowed candidate with the largest expected gain; the first by order where equal.

    While nothing is known to fit, that with the largest expected speed. Candidates that are hardly
    expected to fit come last, the likeliest first.
    """
    best = best_log_seconds(prior, trials)
    if best is None:
        score, gains = log_expected_speed(belief), np.full(len(allowed), inf)
    else:
        score = log_expected_gain(belief, best)
        # Cut where the exponential of an exponential would overflow.
        gains = np.expm1(np.exp(np.minimum(score, 5.0)))
    hopeless = belief.fits < HOPEFUL
    score = np.where(hopeless, -1e6 + np.log(np.maximum(belief.fits, 1e-300)), score)
    # Where expectations are equal: the simpler one, then the space's order.
    order = np.lexsort((-prior.simplicity, -score.round(6), ~allowed))
    index = int(order[0])
    return Proposal(
        index=index,
        gain=float(gains[index]),
        fits=float(belief.fits[index]),
        succeeds=float(belief.succeeds[index]),
    )


def best_log_seconds(prior: Prior, trials: Sequence[Trial]) -> float | None:
    """Logarithm of the fastest trial's seconds within the limit; ``None`` without any."""
    limit = prior.limit_bytes
    fitting = [
        log(t.seconds)
        for t in trials
        if t.is_value and t.seconds and (t.need_bytes or 0.0) <= limit
    ]
    return min(fitting, default=None)


def log_expected_gain(belief: Belief, best_log_seconds: float) -> Array:
    """Logarithm of the expected gain in log speed, shape ``(n,)``, success taken into account.

    Expected improvement (Jones, Schonlau and Welch 1998), in logarithms as far as its tail (Ament
    et al. 2023, https://arxiv.org/abs/2310.20708), averaged over the experts, times the probability
    of success.
    """
    # The tail's expansion keeps candidates in order where the gain itself underflows to zero.
    z = (best_log_seconds - belief.means) / belief.errors
    density = np.exp(-0.5 * z**2) / (2 * pi) ** 0.5
    near = np.log(np.maximum(density + z * normal_cdf(z), 1e-300))
    tail = -0.5 * z**2 - 0.5 * log(2 * pi) - 2 * np.log(np.maximum(-z, 1.0))
    log_gains = np.where(z < -FAR, tail, near) + np.log(belief.errors)
    log_gain = np.logaddexp.reduce(log_gains + np.log(belief.weights)[:, None], axis=0)
    return np.asarray(log_gain + np.log(np.maximum(belief.succeeds, 1e-12)))


def log_expected_speed(belief: Belief) -> Array:
    """Logarithm of the expected steps per second, success taken into account: for a first probe."""
    return np.asarray(np.log(np.maximum(belief.succeeds, 1e-12)) - belief.log_seconds)


def gain_of_more(
    belief: Belief, best_log_seconds: float, allowed: Mask, count: int
) -> tuple[float, float]:
    """Speed that ``count`` more probes may gain, relative: expected, and the 90% quantile.

    Drawn 2,000 times from the belief, for the candidates of the largest expected gains.
    """
    order = np.argsort(-np.where(allowed, log_expected_gain(belief, best_log_seconds), -np.inf))
    tried = order[: min(count, int(allowed.sum()))]
    if not len(tried):
        return 0.0, 0.0
    # Each on its own: what they have in common makes the true gain more variable, not larger on
    # average.
    random = np.random.default_rng(0)
    drawn = random.normal(belief.log_seconds[tried], belief.error[tried], (2000, len(tried)))
    runs = random.random(drawn.shape) < belief.succeeds[tried]
    gains = np.where(runs, best_log_seconds - drawn, 0.0).max(1).clip(min=0.0)
    relative = np.expm1(gains)
    return float(relative.mean()), float(np.quantile(relative, 0.9))
