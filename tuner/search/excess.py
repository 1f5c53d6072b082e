"""Errors of predictions, as logarithms: learned from trials, of this search and of others.

A Gaussian process over configurations, of three parts: an offset that a whole search has in common
(another machine, other versions), a part that fades with the distance of configurations, and a part
that searches share, which fades with the distance of their workloads too.
"""

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
    alike_again,
    log_likelihood,
    regress,
)
from tuner.search.trials import Past, Prior

# How many times as large as assumed errors may turn out to be. A search's own trials decide.
STRETCHED = (0.35, 0.6, 1.0, 1.7, 3.0, 10.0, 30.0, 100.0)
# Factor, either way, that is usual for that: one standard deviation of its logarithm.
STRETCH = 2.0
# Trials below which errors are not taken to be smaller than assumed: one may be chance.
FEW = 3
# Errors that searches may have in common (standard deviation); the past decides, by its likelihood.
SHARED = (0.0, 0.15, 0.3, 0.5)
# Errors beside those of an earlier trial; decided likewise.
PAST_ERROR = (0.1, 0.3, 0.6)
# Error that all indirect trials may share, as a standard deviation: the usual one between studies
# of one workload (``USUAL_OWN`` of :mod:`tuner.planner.similar`).
SHIFT = 0.2
# Earlier trials that are used: those of the most similar workloads.
MOST_PAST = 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialErrors:
    """Errors of the predictions for trials of this search; arrays of shape ``(m,)``."""

    index: Rows
    """Rows of the candidates."""
    off: Array
    """Logarithm of the measured value over the predicted one."""
    error: Array
    """Standard deviation of that."""
    indirect: Array
    """1 for trials that were run in another way, which share :data:`SHIFT`; else 0."""

    @property
    def shared_error(self) -> Array:
        """Covariance of the error that they share, shape ``(m, m)``."""
        return np.asarray(SHIFT**2 * np.outer(self.indirect, self.indirect))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedErrors:
    """Standard deviations of the errors of predictions, before any trial."""

    offset: float
    """Error that a whole search has in common."""
    own: float
    """Error of one configuration beside that."""


def nearest(past: Past, workload: Array) -> Past:
    """At most :data:`MOST_PAST` trials, those of the most similar workloads."""
    if past.size <= MOST_PAST:
        return past
    distance = ((past.workload - workload) ** 2).sum(1)
    return past.take(np.argsort(distance, kind="stable")[:MOST_PAST])


def learn(
    prior: Prior,
    errors: TrialErrors,
    assumed: AssumedErrors,
    past: Past | None,
    past_off: Array | None,
    at: Rows | None = None,
) -> Posterior:
    """The believed errors of the candidates' predictions.

    Args:
        prior: the candidates.
        errors: of trials of this search.
        assumed: before any trial.
        past: earlier trials.
        past_off: the error of each of them, ``nan`` where that is not known.
        at: rows of candidates; all of them by default.
    """
    points = prior.features if at is None else prior.features[at]
    if past is None or past_off is None or np.isnan(past_off).all():
        return _alone(points, prior.features[errors.index], errors, assumed)
    # Trials that failed were not timed; they count in the probability to run alone.
    known = np.flatnonzero(~np.isnan(past_off))
    return _with_past(prior, points, errors, assumed, past.take(known), past_off[known])


def _alone(points: Array, tried: Array, errors: TrialErrors, assumed: AssumedErrors) -> Posterior:
    between = _shape(assumed, alike(tried, tried))
    stretch = _stretch(errors, between)
    own = np.full(len(points), assumed.offset**2 + assumed.own**2)
    cross = _shape(assumed, alike(tried, points))
    cross *= stretch**2
    return regress(
        errors.off,
        stretch**2 * between + errors.shared_error,
        errors.error,
        cross.T,
        stretch**2 * own,
    )


def _shape(assumed: AssumedErrors, near: Array) -> Array:
    """The covariance of what predictions are off by, before it is stretched; in place."""
    near *= assumed.own**2
    near += assumed.offset**2
    return near


def _with_past(
    prior: Prior, points: Array, errors: TrialErrors, assumed: AssumedErrors, past: Past, off: Array
) -> Posterior:
    tried = prior.features[errors.index]
    key = ByContents((past, off), past.study, past.features, past.workload, off)
    shared = _shared(key, assumed)
    same = ByContents(past, past.study, past.features, past.workload)
    similar = shared.amplitude**2 * alike(past.workload, prior.workload[None, :])
    among = alike(tried, tried)
    stretch = _stretch(errors, _shape(assumed, among.copy()))

    def ours(near: Array) -> Array:
        common = shared.amplitude**2 * near
        return np.asarray(stretch**2 * _shape(assumed, near) + common)

    theirs = similar * alike(past.features, tried)
    between = np.block(
        [
            [_kept_covariance(same, assumed, shared.amplitude), theirs],
            [theirs.T, ours(among) + errors.shared_error],
        ]
    )
    near = alike_again(past.features, points) if len(points) else np.empty((len(off), 0))
    cross = [similar * near, ours(alike(tried, points))]
    variance = stretch**2 * (assumed.offset**2 + assumed.own**2) + shared.amplitude**2
    return regress(
        np.concatenate([off, errors.off]),
        between,
        np.concatenate([np.full(len(off), shared.error), errors.error]),
        np.concatenate(cross).T,
        np.full(len(points), variance),
    )


def _stretch(errors: TrialErrors, shape: Array) -> float:
    """The likeliest size of errors, in those assumed, after the trials."""
    if not len(errors.off):
        return 1.0
    shared = errors.shared_error

    def fit(factor: float) -> float:
        usual = -0.5 * (log(factor) / log(STRETCH)) ** 2
        between = factor**2 * shape
        between += shared
        return usual + log_likelihood(errors.off, between, errors.error)

    # One or two trials that happen to agree with their predictions prove little.
    least = 1.0 if len(errors.off) < FEW else 0.0
    return max((factor for factor in STRETCHED if factor >= least), key=fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedErrors:
    """The part of the past that holds for another search."""

    amplitude: float
    """Standard deviation of the part in common."""
    error: float
    """Standard deviation of an earlier trial."""


# At every ask of a search its past is the same, and of all its experts.
@lru_cache(maxsize=8)
def _kept_covariance(key: ByContents[Past], assumed: AssumedErrors, amplitude: float) -> Array:
    return _past_covariance(key.value, assumed, amplitude)


def _past_covariance(past: Past, assumed: AssumedErrors, amplitude: float) -> Array:
    near = alike(past.features, past.features)
    same = past.study[:, None] == past.study[None, :]
    alone = same * (assumed.offset**2 + assumed.own**2 * near)
    return np.asarray(alone + amplitude**2 * near * alike(past.workload, past.workload))


# At every ask of a search its past is the same.
@lru_cache(maxsize=16)
def _shared(key: ByContents[tuple[Past, Array]], assumed: AssumedErrors) -> SharedErrors:
    """The errors that searches share: those that make the past most likely.

    A past of one search says nothing of that, and the second of the choices is taken.
    """
    past, off = key.value
    if len(set(past.study.tolist())) < 2:
        return SharedErrors(amplitude=SHARED[1], error=PAST_ERROR[1])
    alone = _past_covariance(past, assumed, 0.0)
    common = alike(past.features, past.features) * alike(past.workload, past.workload)

    def fit(choice: tuple[float, float]) -> float:
        error = np.full(len(off), choice[1])
        return log_likelihood(off, alone + choice[0] ** 2 * common, error)

    amplitude, error = max(product(SHARED, PAST_ERROR), key=fit)
    return SharedErrors(amplitude=amplitude, error=error)
