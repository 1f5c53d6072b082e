"""What is believed of every candidate after the trials: speed, memory, and whether it runs.

Speed and memory are each the prediction times what it is believed to be off by
(:mod:`tuner.search.excess`). Whether settings run for which memory suffices is the probability that
was assumed, times the successes that were seen nearby over those that were expected there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, hypot, log

import numpy as np

from tuner.search.excess import Assumed, Seen, learn, nearest
from tuner.search.features import Array
from tuner.search.kernel import Posterior, alike, one_thread
from tuner.search.prior import Prior
from tuner.search.trials import Past, Result, Trial

SPEED = Assumed(offset=0.7, own=0.35)
"""What predicted speeds are off by: a factor of 2 in common, and 1.4 beside that, is usual on
published runs (docs/prediction.md)."""
INDIRECT = 0.1
"""Of the time of one candidate that was run in another way, beside what all such share."""
LEAST_ERROR = 0.02
"""Of one timing, as a standard deviation of its logarithm: runs differ by so much."""
CLIPPED = (-1.5, 1.0)
"""To which an earlier trial's excess is cut: how slow the hopeless are teaches nothing."""
DOUBT = 3.0
"""Trials that the assumed probability to run counts for."""
MEMORY_DISTANCE = 0.25
"""Logarithm of needs within one length scale, where the cause of a failure is not known."""

HAVE_RUN = frozenset({Result.RAN, Result.SLOW})
"""After which it is known that candidates run."""
HAVE_NOT_RUN = frozenset({Result.FAILED, Result.TIMED_OUT})
"""After which it is known that they do not, whether for want of memory or not."""
LOWER_BOUNDS = frozenset({Result.SLOW, Result.TIMED_OUT})
"""After which a step is known to take at least so long."""

_phi = np.vectorize(lambda z: 0.5 * (1 + erf(z / 2**0.5)), otypes=[float])


def normal_cdf(z: Array) -> Array:
    """The standard normal distribution's."""
    return np.asarray(_phi(z))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """All arrays have shape ``(n,)``, one number per candidate."""

    log_seconds: Array
    """Mean of the logarithm of the seconds of a step."""
    error: Array
    """Its standard deviation; before any trial, without what all candidates have in common."""
    log_need: Array
    """Mean of the logarithm of the bytes needed."""
    need_error: Array
    """Its standard deviation."""
    fits: Array
    """Probability that the need is within the limit."""
    succeeds: Array
    """Probability that it fits and runs."""


@one_thread()
def believe(prior: Prior, trials: Sequence[Trial], past: Past | None = None) -> Belief:
    """The belief after ``trials``; their order does not matter."""
    trials = sorted(trials, key=lambda t: (t.index, t.indirect, t.result.value, t.seconds or 0.0))
    past = None if past is None or not past.size else nearest(past, prior.workload)
    time = _speed(prior, trials, past)
    need = _memory(prior, trials)
    log_need, need_error = prior.log_need + need.mean, np.sqrt(need.variance + 1e-6)
    fits = normal_cdf((prior.log_limit - log_need) / need_error)
    common = 0.0 if any(t.seconds for t in trials) else SPEED.offset**2
    return Belief(
        log_seconds=_known(prior.log_seconds) + time.mean,
        error=np.sqrt(np.maximum(time.variance - common, 1e-6)),
        log_need=log_need,
        need_error=need_error,
        fits=fits,
        succeeds=fits * _runs(prior, trials, past, fits, log_need),
    )


def _known(values: Array) -> Array:
    """Unknown predictions are taken for the median of the others."""
    unknown = np.isnan(values)
    if unknown.all():
        return np.zeros(len(values))
    return np.where(unknown, np.nanmedian(values), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What one trial was off by."""

    index: int
    """The candidate."""
    off: float
    """Logarithm of what was seen over what was predicted."""
    error: float
    """Standard deviation of that."""
    indirect: bool
    """As of the trial."""


def _seen(rows: Sequence[_Row]) -> Seen:
    return Seen(
        index=np.array([row.index for row in rows], dtype=np.intp),
        off=np.array([row.off for row in rows], dtype=float),
        error=np.array([row.error for row in rows], dtype=float),
        indirect=np.array([row.indirect for row in rows], dtype=float),
    )


def _speed(prior: Prior, trials: Sequence[Trial], past: Past | None) -> Posterior:
    """What predicted seconds are off by; a lower bound counts if it says more than the rest."""
    base = _known(prior.log_seconds)
    off = None if past is None else np.clip(past.log_excess, *CLIPPED)
    timed = [(t, _timed(t, log(t.seconds) - float(base[t.index]))) for t in trials if t.seconds]
    ran = [row for t, row in timed if t.result is Result.RAN]
    bounds = [(t, row) for t, row in timed if t.result in LOWER_BOUNDS]
    at = np.array([t.index for t, _ in bounds], dtype=np.intp)
    believed = learn(prior, _seen(ran), SPEED, past, off, at).mean.tolist() if bounds else ()
    slower = [
        _bounded(t, row, mean)
        for (t, row), mean in zip(bounds, believed, strict=True)
        if row.off > mean
    ]
    return learn(prior, _seen([*ran, *slower]), SPEED, past, off)


def _timed(trial: Trial, off: float) -> _Row:
    error = hypot(trial.error, INDIRECT) if trial.indirect else trial.error
    return _Row(index=trial.index, off=off, error=max(error, LEAST_ERROR), indirect=trial.indirect)


def _bounded(trial: Trial, row: _Row, believed: float) -> _Row:
    """A step whose time was up may hang, which is no measure of how slow others are."""
    if trial.result is Result.SLOW:
        return row
    most = CLIPPED[1]
    return replace(row, off=min(row.off, believed + most), error=most)


def _memory(prior: Prior, trials: Sequence[Trial]) -> Posterior:
    """What predicted needs are off by; a trial that ran out of memory needs more than it had.

    Earlier searches are not asked: only what ran has a measured need, which is then too low.
    """
    usual = float(np.median(prior.need_error))
    rows = []
    for trial in (t for t in trials if t.need_bytes):
        off = log(trial.need_bytes or 1.0) - float(prior.log_need[trial.index])
        if trial.result in (Result.RAN, Result.SLOW):
            error = max(usual / (2 if trial.indirect else 10), 1e-3)
        elif trial.result is Result.TOO_LARGE and off > 0:
            off, error = off + usual / 2, usual / 2
        else:
            continue
        rows.append(_Row(index=trial.index, off=off, error=error, indirect=False))
    assumed = Assumed(offset=usual / 2**0.5, own=usual / 2**0.5)
    found = learn(prior, _seen(rows), assumed, None, None)
    # Some are predicted less exactly than others, and stay so until they are tried.
    return replace(found, variance=found.variance * (prior.need_error / usual) ** 2)


def _runs(
    prior: Prior, trials: Sequence[Trial], past: Past | None, fits: Array, log_need: Array
) -> Array:
    """Probability to run where memory suffices: assumed, times successes seen over expected."""
    runs = prior.runs
    if past is not None:
        near = alike(prior.features, past.features)
        near = near * alike(prior.workload[None, :], past.workload)
        seen = (DOUBT + near @ past.ran) / (DOUBT + near @ past.expected)
        runs = runs * np.clip(seen, 0.05, 1.0)
    told = [t for t in trials if t.result in HAVE_RUN or t.result in HAVE_NOT_RUN]
    if told:
        tried = np.array([t.index for t in told], dtype=np.intp)
        ran = np.array([float(t.result in HAVE_RUN) for t in told])
        need = (log_need - log_need.mean()) / MEMORY_DISTANCE
        points = np.column_stack([prior.features, need])
        near = alike(points, points[tried])
        seen = (1 + 2 * (near @ ran)) / (1 + 2 * (near @ (runs * fits)[tried]))
        runs = runs * np.clip(seen, 0.02, 10.0)
    return np.minimum(runs, 0.99)
