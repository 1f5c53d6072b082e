"""What is believed of step times that are looked at together, for one of them was chosen.

The fastest of several probes is likely a lucky one: its interval, taken for itself, lies too low.
So the true times of all contenders, in logarithms, are taken as normally distributed around an
unknown mean, with an unknown spread; each was seen with the error of its steps, and of the luck of
its runs, of which all have a share. What is then believed of one lies between its own time and the
mean, the nearer to the mean the less contenders differ beside their errors. That is the
random-effects model (Gelman et al., Bayesian Data Analysis, 3rd ed., section 5.4) with the
half-Cauchy prior of a spread (Gelman, Bayesian Analysis 1, 2006), and what is known of luck
(:mod:`tuner.planner.luck`) as the prior of its size: so contenders that agree narrow it, too.
Any one may also be apart from all others, for a reason of its own, and as one of them is expected
to be, what is clearly faster keeps its place.

A posterior holds whatever it was looked at for (Dawid, Selection paradoxes of Bayesian inference,
IMS Lecture Notes 24, 1994; Efron, Tweedie's formula and selection bias, JASA 106, 2011).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import erf, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from tuner.planner.luck import Luck

Array = NDArray[np.float64]

REACH = 0.2
"""Part by which times differ that are worth looking at together: several times what runs differ by,
so that it is hardly luck who is among them. What is apart may be anywhere as near as that."""
USUAL = 0.03
"""Scale of the spread of true times: half of all spreads are believed to be less."""
SPREADS = np.geomspace(0.0005, 0.3, 16)
"""Spreads that are summed over, evenly in logarithms."""
LUCKS = np.linspace(-2.5, 4.5, 16)
"""Sizes of luck that are summed over: logarithms of the ratio to the best estimate, in standard
deviations of that logarithm, which are about ``1 / sqrt(2 freedom)``."""
NEGLIGIBLE = 1e-4
"""Weight of a case, of all cases, below which it is left out."""
HALVINGS = 22
"""Of the range in which a quantile is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One contender's time as it was seen."""

    value: float
    """The logarithm of the seconds measured."""
    runs: int
    """Runs that it is the middle of; luck is of a run."""
    steps: float
    """Variance of the logarithm's error that the spread of the steps shows."""


# The sentences of one answer ask for the same again.
@lru_cache(maxsize=4)
def joint_ends(contenders: tuple[Seen, ...], luck: Luck) -> tuple[tuple[float, float], ...]:
    """Ends of the 80% intervals of the logarithms of two or more contenders' times.

    An interval need not hold the value that was measured: who is far ahead of the others by luck
    alone is believed to be slower.
    """
    values = np.array([one.value for one in contenders])
    middle = float(values.mean())
    cases = _Cases(contenders, values - middle, luck)
    ends = (cases.ends_of(place) for place in range(len(contenders)))
    return tuple((middle + low, middle + high) for low, high in ends)


class _Cases:
    """Contenders under every size of luck and every spread of their true times.

    Arrays have the axes luck, spread, contender, as far as they differ along them.
    """

    def __init__(self, contenders: Sequence[Seen], values: Array, luck: Luck) -> None:
        self._values = values
        lucks = sqrt(luck.variance) * np.exp(LUCKS / sqrt(2 * luck.freedom))
        runs = np.array([one.runs for one in contenders])
        steps = np.array([one.steps for one in contenders])
        self._errors = lucks[:, None] ** 2 / runs + steps
        self._precisions = 1 / (self._errors[:, None, :] + SPREADS[:, None] ** 2)
        self._precision = self._precisions.sum(-1)
        self._mean = (self._precisions * values).sum(-1) / self._precision
        of_luck = -luck.freedom * np.log(lucks) - luck.squares / (2 * lucks**2)
        of_spread = np.log(SPREADS / (1 + (SPREADS / USUAL) ** 2))
        self._prior = of_luck[:, None] + of_spread
        self._together, self._apart = self._log_weights()

    def ends_of(self, place: int) -> tuple[float, float]:
        """One contender's interval."""
        value, errors = self._values[place], self._errors[:, place]
        pull = errors[:, None] * self._precisions[..., place]
        means = (1 - pull) * value + pull * self._mean
        variances = (1 - pull) * errors[:, None] + pull**2 / self._precision
        weights = np.concatenate([self._together.ravel(), self._apart[:, place]])
        weights = np.exp(weights - weights.max())
        found = zip(
            weights / weights.sum(),
            np.concatenate([means.ravel(), np.full(len(errors), value)]),
            np.sqrt(np.concatenate([variances.ravel(), errors])),
            strict=True,
        )
        mixture = [tuple(map(float, case)) for case in found if case[0] > NEGLIGIBLE]
        return _quantile(0.1, mixture), _quantile(0.9, mixture)

    def _log_weights(self) -> tuple[Array, Array]:
        """Of all being together; and of each being apart from the others, without spread."""
        each, values = self._precisions, self._values
        terms = np.stack([np.log(each), each, each * values, each * values**2])
        sums, count = terms.sum(-1), len(values)
        together = self._prior + _log_evidence(sums, count) + log(1 - 1 / count)
        others = self._prior[..., None] + _log_evidence(sums[..., None] - terms, count - 1)
        apart = np.logaddexp.reduce(others, axis=1) - log(count) - log(2 * REACH)
        return together, apart


def _log_evidence(sums: Array, count: int) -> Array:
    """How well normally distributed values around an unknown mean are explained, as a logarithm.

    Args:
        sums: over the values, along the first axis: of the logarithms of their precisions, of the
            precisions, and of those times the values and their squares.
        count: of the values.
    """
    logs, precision, first, second = sums
    misfit = second - first**2 / precision
    found: Array = (logs - np.log(precision) - misfit - (count - 1) * log(2 * pi)) / 2
    return found


def _quantile(part: float, mixture: Sequence[tuple[float, ...]]) -> float:
    """Of normal distributions, each with its weight, mean and standard deviation."""
    low = min(mean - 4 * error for _, mean, error in mixture)
    high = max(mean + 4 * error for _, mean, error in mixture)
    below = part * sum(weight for weight, _, _ in mixture)
    scaled = [(weight / 2, mean, error * sqrt(2)) for weight, mean, error in mixture]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mass = sum([half * (1 + erf((middle - mean) / scale)) for half, mean, scale in scaled])
        low, high = (middle, high) if mass < below else (low, middle)
    return (low + high) / 2
