"""Errors of predictions, as logarithms: learned from trials, of this search and of others.

A Gaussian process over configurations, of four parts: an offset that a whole search has in common
(another machine, other versions), a part that fades with the distance of configurations, one of
each configuration for itself (some stall, unexplained), and a part that searches share, which fades
with the distance of their workloads too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import log

import numpy as np

from tuner.search.kernel import (
    Array,
    ByContents,
    Posterior,
    Rows,
    alike,
    log_likelihood,
    regress,
    solved,
)
from tuner.search.trials import Past, Prior

# Errors that searches may have in common (standard deviation); the past decides, by its likelihood.
SHARED = (0.0, 0.15, 0.3, 0.5)
# Errors beside those of an earlier trial; decided likewise.
PAST_ERROR = (0.1, 0.3, 0.6)
# Error that all indirect trials may share, as a standard deviation: the usual one between studies
# of one workload (``USUAL_OWN`` of :mod:`tuner.planner.similar`).
SHIFT = 0.2
# Earlier trials that are used: those of the most similar workloads.
MOST_PAST = 300
# Trials below which errors are not taken to be smaller than usual: one may be chance.
FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialErrors:
    """Errors of the predictions of ``k`` experts for ``m`` trials of this search."""

    index: Rows
    """Rows of the candidates, shape ``(m,)``."""
    off: Array
    """Logarithm of the measured value over the predicted ones, shape ``(m, k)``."""
    error: Array
    """Standard deviation of that, shape ``(m,)``."""
    indirect: Array
    """1 for trials that were run in another way, which share :data:`SHIFT`; else 0."""
    judged: int
    """How many of them, the first, tell how large errors are, and who is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSizes:
    """Standard deviations of the parts of errors, as they may be."""

    offset: float
    smooth: float
    single: float
    doubt: float = 0.0
    """How much less likely than the usual ones before any trial, in logarithms."""
    least: int = 0
    """Trials before which they are not considered."""

    def between(self, near: Array) -> Array:
        """Covariance of errors, without those of each configuration for itself."""
        return np.asarray(self.smooth**2 * near + self.offset**2)


# Seconds may be off by any factor that all candidates have in common: the first probe tells it.
OFFSET = 3.0
# What speeds are off by beside that: a factor of 1.4 that fades with distance, or less (published
# runs; docs/prediction.md), and each configuration for itself.
SMOOTH, SINGLE = (0.35, 0.1), (0.05, 0.1, 0.2, 0.4, 0.8)
USUAL = ErrorSizes(offset=OFFSET, smooth=SMOOTH[0], single=0.2)
SPEED = tuple(
    ErrorSizes(
        offset=OFFSET,
        smooth=smooth,
        single=single,
        doubt=0.5 * (log(single / USUAL.single) / log(3)) ** 2,
        least=0 if smooth == USUAL.smooth else FEW,
    )
    for smooth, single in product(SMOOTH, SINGLE)
)
# How many times as large as usual the errors of needs may turn out to be.
STRETCHED = (0.35, 0.6, 1.0, 1.7, 3.0, 10.0, 30.0, 100.0)


def need_sizes(usual: float) -> list[ErrorSizes]:
    """ErrorSizes of the errors of needs: half of their variance is in common."""
    return [
        ErrorSizes(
            offset=factor * usual / 2**0.5,
            smooth=factor * usual / 2**0.5,
            single=0.0,
            doubt=0.5 * (log(factor) / log(2)) ** 2,
            least=0 if factor >= 1 else FEW,
        )
        for factor in STRETCHED
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told:
    """What the past says of ``n`` candidates."""

    mean: Array
    """Shape ``(n, k)``."""
    spread: Array
    """Its trials' covariance with candidates, made white, shape ``(p, n)``."""
    known: Array
    """Variance that is known by it, shape ``(n,)``."""
    amplitude: float
    """Standard deviation of the part that searches share."""


def learn(
    near: Array,
    errors: TrialErrors,
    choices: Sequence[ErrorSizes],
    told: Told | None = None,
    at: Rows | None = None,
) -> Posterior:
    """The believed errors of the candidates' predictions.

    Args:
        near: similarity of all candidates with those that were tried, shape ``(n, m)``.
        errors: of trials of this search.
        choices: sizes of errors; the likeliest count, of which these trials decide.
        told: by earlier searches.
        at: rows of candidates; all of them by default.
    """
    index, off, judged = errors.index, errors.off, slice(errors.judged)
    among, points = near[index], slice(None) if at is None else at
    fixed = SHIFT**2 * np.outer(errors.indirect, errors.indirect)
    shared, known, cross = 0.0, np.zeros(1), np.zeros(1)
    if told is not None:
        ours = told.spread[:, index]
        shared, off = told.amplitude**2, off - told.mean[index]
        fixed = fixed + shared * among - ours.T @ ours
        cross, known = told.spread[:, points].T @ ours, told.known[points]

    def between(sizes: ErrorSizes) -> Array:
        alone = sizes.single**2 * np.equal.outer(index, index)
        return np.asarray(fixed + alone + sizes.between(among))

    def fit(sizes: ErrorSizes) -> float:
        likely = log_likelihood(off[judged], between(sizes)[judged, judged], errors.error[judged])
        return float(np.logaddexp.reduce(likely)) - sizes.doubt

    likeliest = max((one for one in choices if errors.judged >= one.least), key=fit)
    own = likeliest.offset**2 + likeliest.smooth**2 + likeliest.single**2 + shared - known
    crossed = near[points] * (likeliest.smooth**2 + shared)
    crossed += likeliest.offset**2 - cross
    rows = np.arange(len(near))[points]
    crossed += likeliest.single**2 * np.equal.outer(rows, index)
    found = regress(
        off, between(likeliest), errors.error, crossed, np.broadcast_to(own, len(crossed))
    )
    if told is None:
        return found
    return Posterior(
        mean=found.mean + told.mean[points], variance=found.variance, surprise=found.surprise
    )


def told_by(past: Past, off: Array, prior: Prior) -> Told | None:
    """What earlier trials say of candidates; ``None`` where searches have nothing in common.

    Args:
        past: earlier trials.
        off: the errors of the predictions of each, ``nan`` where that is not known: ``(p, k)``.
        prior: the candidates.
    """
    # Trials that failed were not timed; they count in the probability to run alone.
    rows = np.flatnonzero(~np.isnan(off).any(1))
    if not len(rows):
        return None
    past, off = nearest(past.take(rows), prior.workload, off[rows])
    arrays = (past.study, past.features, past.workload, off)
    amplitude, factor = _shared(ByContents((past, off), *arrays))
    if not amplitude:
        return None
    key = (past, off, amplitude, factor, prior)
    return _told(ByContents(key, *arrays, prior.features, prior.workload))


def nearest(past: Past, workload: Array, off: Array) -> tuple[Past, Array]:
    """At most :data:`MOST_PAST` trials, those of the most similar workloads."""
    distance = ((past.workload - workload) ** 2).sum(1)
    rows = np.argsort(distance, kind="stable")[:MOST_PAST]
    return past.take(rows), off[rows]


# At every ask of a search its past and its candidates are the same.
@lru_cache(maxsize=4)
def _shared(key: ByContents[tuple[Past, Array]]) -> tuple[float, Array]:
    """The amplitude of the errors that searches share, and the factor of the past's covariance.

    Those sizes count that make the past most likely. A past of one search says nothing of them, and
    the second of the choices is taken.
    """
    past, off = key.value
    near = alike(past.features, past.features)
    same = past.study[:, None] == past.study[None, :]
    alone, common = same * USUAL.between(near), near * alike(past.workload, past.workload)

    def fit(choice: tuple[float, float]) -> float:
        error = np.full(len(off), choice[1])
        between = alone + choice[0] ** 2 * common
        return float(np.logaddexp.reduce(log_likelihood(off, between, error)))

    amplitude, error = SHARED[1], PAST_ERROR[1]
    if len(set(past.study.tolist())) > 1:
        amplitude, error = max(product(SHARED, PAST_ERROR), key=fit)
    noisy = alone + amplitude**2 * common + error**2 * np.eye(len(off))
    return amplitude, np.asarray(np.linalg.cholesky(noisy), dtype=np.float64)


@lru_cache(maxsize=2)
def _told(key: ByContents[tuple[Past, Array, float, Array, Prior]]) -> Told:
    past, off, amplitude, factor, prior = key.value
    similar = amplitude**2 * alike(past.workload, prior.workload[None, :])
    spread = solved(factor, similar * alike(past.features, prior.features))
    return Told(
        mean=spread.T @ solved(factor, off),
        spread=spread,
        known=np.einsum("pn,pn->n", spread, spread),
        amplitude=amplitude,
    )
