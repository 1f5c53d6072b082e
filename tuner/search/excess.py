"""What a prediction is off by, as logarithms: learned from trials, of this search and of others.

A Gaussian process over settings, of three parts: an offset that a whole search has in common
(another machine, other versions), a part that fades with the distance of settings, and a part that
searches share, which fades with the distance of their workloads too.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import log

import numpy as np

from tuner.search.features import Array, Rows
from tuner.search.kernel import ByContents, Posterior, alike, log_likelihood, regress
from tuner.search.prior import Prior
from tuner.search.trials import Past

STRETCHED = (0.35, 0.6, 1.0, 1.7, 3.0, 10.0, 30.0, 100.0)
"""How many times as large as assumed errors may turn out to be. A search's own trials decide."""
STRETCH = 2.0
"""Factor, either way, that is usual for that: one standard deviation of its logarithm."""
FEW = 3
"""Trials below which errors are not taken to be smaller than assumed: one may be luck."""
SHARED = (0.0, 0.15, 0.3, 0.5)
"""What searches may have in common (standard deviation); the past decides, by its likelihood."""
PAST_ERROR = (0.1, 0.3, 0.6)
"""What else an earlier trial may differ by; decided likewise."""
SHIFT = 0.2
"""What all indirect trials may be off by together, as a standard deviation: what is usual between
studies of one workload (``USUAL_OWN`` of :mod:`tuner.planner.transfer`)."""
MOST_PAST = 300
"""Earlier trials that are looked at: those of the most similar workloads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What trials of this search were off by; arrays of shape ``(m,)``."""

    index: Rows
    """The candidates."""
    off: Array
    """Logarithm of what was seen over what was predicted."""
    error: Array
    """Standard deviation of that."""
    indirect: Array
    """1 for trials that were run in another way, which share :data:`SHIFT`; else 0."""

    @property
    def shared_error(self) -> Array:
        """Covariance of what they are off by together, shape ``(m, m)``."""
        return np.asarray(SHIFT**2 * np.outer(self.indirect, self.indirect))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Standard deviations of what predictions are off by, before any trial."""

    offset: float
    """Of what a whole search has in common."""
    own: float
    """Of what settings are off by beside that."""


def nearest(past: Past, workload: Array) -> Past:
    """At most :data:`MOST_PAST` trials, those of the most similar workloads."""
    if past.size <= MOST_PAST:
        return past
    distance = ((past.workload - workload) ** 2).sum(1)
    return past.take(np.argsort(distance, kind="stable")[:MOST_PAST])


def learn(
    prior: Prior,
    seen: Seen,
    assumed: Assumed,
    past: Past | None,
    past_off: Array | None,
    at: Rows | None = None,
) -> Posterior:
    """What candidates' predictions are believed to be off by.

    Args:
        prior: the candidates.
        seen: trials of this search.
        assumed: before any trial.
        past: earlier trials.
        past_off: what each of them was off by, ``nan`` where that is not known.
        at: the candidates that are asked for; all of them by default.
    """
    points = prior.features if at is None else prior.features[at]
    if past is None or past_off is None or np.isnan(past_off).all():
        return _alone(points, prior.features[seen.index], seen, assumed)
    known = np.flatnonzero(~np.isnan(past_off))
    return _with_past(prior, points, seen, assumed, past.take(known), past_off[known])


def _alone(points: Array, tried: Array, seen: Seen, assumed: Assumed) -> Posterior:
    between = _shape(assumed, alike(tried, tried))
    stretch = _stretch(seen, between)
    own = np.full(len(points), assumed.offset**2 + assumed.own**2)
    cross = _shape(assumed, alike(tried, points))
    cross *= stretch**2
    return regress(
        seen.off,
        stretch**2 * between + seen.shared_error,
        seen.error,
        cross.T,
        stretch**2 * own,
    )


def _shape(assumed: Assumed, near: Array) -> Array:
    """The covariance of what predictions are off by, before it is stretched; in place."""
    near *= assumed.own**2
    near += assumed.offset**2
    return near


def _with_past(
    prior: Prior, points: Array, seen: Seen, assumed: Assumed, past: Past, off: Array
) -> Posterior:
    tried = prior.features[seen.index]
    key = ByContents((past, off), past.study, past.features, past.workload, off)
    shared = _shared(key, assumed)
    similar = shared.amplitude**2 * alike(past.workload, prior.workload[None, :])
    among = alike(tried, tried)
    stretch = _stretch(seen, _shape(assumed, among.copy()))

    def ours(near: Array) -> Array:
        common = shared.amplitude**2 * near
        return np.asarray(stretch**2 * _shape(assumed, near) + common)

    theirs = similar * alike(past.features, tried)
    between = np.block(
        [
            [ours(among) + seen.shared_error, theirs.T],
            [theirs, _past_covariance(past, assumed, shared.amplitude)],
        ]
    )
    cross = [ours(alike(tried, points)), similar * alike(past.features, points)]
    variance = stretch**2 * (assumed.offset**2 + assumed.own**2) + shared.amplitude**2
    return regress(
        np.concatenate([seen.off, off]),
        between,
        np.concatenate([seen.error, np.full(len(off), shared.error)]),
        np.concatenate(cross).T,
        np.full(len(points), variance),
    )


def _stretch(seen: Seen, shape: Array) -> float:
    """The likeliest size of errors, in those assumed, after what was seen."""
    if not len(seen.off):
        return 1.0
    shared = seen.shared_error

    def fit(factor: float) -> float:
        usual = -0.5 * (log(factor) / log(STRETCH)) ** 2
        between = factor**2 * shape
        between += shared
        return usual + log_likelihood(seen.off, between, seen.error)

    least = 1.0 if len(seen.off) < FEW else 0.0
    return max((factor for factor in STRETCHED if factor >= least), key=fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How much of the past holds for another search."""

    amplitude: float
    """Standard deviation of the part in common."""
    error: float
    """Of an earlier trial."""


def _past_covariance(past: Past, assumed: Assumed, amplitude: float) -> Array:
    near = alike(past.features, past.features)
    same = past.study[:, None] == past.study[None, :]
    alone = same * (assumed.offset**2 + assumed.own**2 * near)
    return np.asarray(alone + amplitude**2 * near * alike(past.workload, past.workload))


# At every ask of a search its past is the same.
@lru_cache(maxsize=16)
def _shared(key: ByContents[tuple[Past, Array]], assumed: Assumed) -> Shared:
    """How much searches have in common: what makes the past most likely.

    A past of one search says nothing of that, and the second of the choices is taken.
    """
    past, off = key.value
    if len(set(past.study.tolist())) < 2:
        return Shared(amplitude=SHARED[1], error=PAST_ERROR[1])
    alone = _past_covariance(past, assumed, 0.0)
    common = alike(past.features, past.features) * alike(past.workload, past.workload)

    def fit(choice: tuple[float, float]) -> float:
        error = np.full(len(off), choice[1])
        return log_likelihood(off, alone + choice[0] ** 2 * common, error)

    amplitude, error = max(product(SHARED, PAST_ERROR), key=fit)
    return Shared(amplitude=amplitude, error=error)
