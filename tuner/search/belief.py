"""The belief about every candidate after the trials: its speed, its memory, and that it runs.

Speed and memory are each the prediction times what it is believed to be off by
(:mod:`tuner.search.excess`). The probability that a configuration runs where memory suffices is the
assumed one, times the successes nearby over those that were expected there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, hypot, log

import numpy as np

from tuner.search.excess import AssumedErrors, TrialErrors, learn, nearest
from tuner.search.kernel import Array, Posterior, alike, alike_again, one_thread
from tuner.search.trials import Past, Prior, Result, Trial

# Errors of predicted speeds: a factor of 2 in common, and 1.4 beside that, is usual on published
# runs (docs/prediction.md).
SPEED = AssumedErrors(offset=0.7, own=0.35)
# Error of the time of one candidate that was run in another way, beside the one that all share.
INDIRECT = 0.1
# Least error of one timing, a standard deviation of its logarithm: runs differ by so much.
LEAST_ERROR = 0.02
# Ends to which an earlier trial's excess is cut: how slow the hopeless are teaches nothing.
CLIPPED = (-1.5, 1.0)
# Trials that the assumed probability to run counts for.
DOUBT = 3.0
# Logarithm of needs within one length scale, where the cause of a failure is not known.
MEMORY_DISTANCE = 0.25

# Results after which it is known that candidates run.
HAVE_RUN = frozenset({Result.RAN, Result.SLOW})
# Results after which it is known that they do not, for want of memory or not.
HAVE_NOT_RUN = frozenset({Result.FAILED, Result.TIMED_OUT})
# Results after which a step is known to take at least so long.
LOWER_BOUNDS = frozenset({Result.SLOW, Result.TIMED_OUT})

_phi = np.vectorize(lambda z: 0.5 * (1 + erf(z / 2**0.5)), otypes=[float])


def normal_cdf(z: Array) -> Array:
    """The cumulative distribution of the standard normal."""
    return np.asarray(_phi(z))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """All arrays have shape ``(n,)``, one number per candidate."""

    log_seconds: Array
    error: Array
    """Its standard deviation; before any trial, without what all candidates have in common."""
    log_need: Array
    need_error: Array
    fits: Array
    succeeds: Array


@one_thread()
def believe(prior: Prior, trials: Sequence[Trial], past: Past | None = None) -> Belief:
    """The belief after ``trials``; their order does not matter."""
    trials = sorted(trials, key=lambda t: (t.index, t.indirect, t.result.value, t.seconds or 0.0))
    past = None if past is None or not past.size else nearest(past, prior.workload)
    time = _speed(prior, trials, past)
    need = _memory(prior, trials)
    log_need, need_error = prior.log_need + need.mean, np.sqrt(need.variance + 1e-6)
    fits = normal_cdf((prior.log_limit - log_need) / need_error)
    # Before any timing the whole search's offset is as uncertain for all, and orders nothing.
    common = 0.0 if any(t.seconds for t in trials) else SPEED.offset**2
    return Belief(
        log_seconds=_filled(prior.log_seconds) + time.mean,
        error=np.sqrt(np.maximum(time.variance - common, 1e-6)),
        log_need=log_need,
        need_error=need_error,
        fits=fits,
        # As if running were independent of fitting: failures that may be of memory are in both.
        succeeds=fits * _runs(prior, trials, past, fits, log_need),
    )


def believed_trials(belief: Belief, indices: Iterable[int]) -> list[Trial]:
    """Candidates as if each had run in the seconds that are believed; memory is left out.

    The "Kriging believer" of Ginsbourger, Le Riche and Carraro (2010).
    """
    return [
        Trial(index=index, result=Result.RAN, seconds=exp(belief.log_seconds[index]))
        for index in indices
    ]


def _filled(values: Array) -> Array:
    # Unknown predictions are taken for the median of the others.
    unknown = np.isnan(values)
    if unknown.all():
        return np.zeros(len(values))
    return np.where(unknown, np.nanmedian(values), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ErrorRow:
    """The error of the prediction for one trial."""

    index: int
    off: float
    """Logarithm of the measured value over the predicted one."""
    error: float
    indirect: bool


def _errors(rows: Sequence[_ErrorRow]) -> TrialErrors:
    return TrialErrors(
        index=np.array([row.index for row in rows], dtype=np.intp),
        off=np.array([row.off for row in rows], dtype=float),
        error=np.array([row.error for row in rows], dtype=float),
        indirect=np.array([row.indirect for row in rows], dtype=float),
    )


def _speed(prior: Prior, trials: Sequence[Trial], past: Past | None) -> Posterior:
    """Errors of predicted seconds; a lower bound counts if it says more than the rest."""
    base = _filled(prior.log_seconds)
    off = None if past is None else np.clip(past.log_excess, *CLIPPED)
    ran, bounds = [], []
    for trial in (t for t in trials if t.seconds):
        error = hypot(trial.error, INDIRECT) if trial.indirect else trial.error
        row = _ErrorRow(
            index=trial.index,
            off=log(trial.seconds or 1.0) - float(base[trial.index]),
            error=max(error, LEAST_ERROR),
            indirect=trial.indirect,
        )
        if trial.result is Result.RAN:
            ran.append(row)
        elif trial.result in LOWER_BOUNDS:
            bounds.append((trial, row))
    if not bounds:
        return learn(prior, _errors(ran), SPEED, past, off)
    at = np.array([trial.index for trial, _ in bounds], dtype=np.intp)
    believed = learn(prior, _errors(ran), SPEED, past, off, at).mean.tolist()
    slower = []
    for (trial, row), mean in zip(bounds, believed, strict=True):
        if row.off > mean and trial.result is Result.TIMED_OUT:
            # It may hang, which is no measure of how slow others are.
            most = CLIPPED[1]
            row = replace(row, off=min(row.off, mean + most), error=most)
        if row.off > mean:
            slower.append(row)
    return learn(prior, _errors([*ran, *slower]), SPEED, past, off)


def _memory(prior: Prior, trials: Sequence[Trial]) -> Posterior:
    """Errors of predicted needs; a trial that ran out of memory needs more than it had."""
    # Earlier searches are left out: only what ran has a measured need, which is then too low.
    usual = float(np.median(prior.need_error))
    rows = []
    for trial in (t for t in trials if t.need_bytes):
        off = log(trial.need_bytes or 1.0) - float(prior.log_need[trial.index])
        if trial.result in (Result.RAN, Result.SLOW):
            # Measured, so much surer than predicted; half as sure where it ran in another way.
            error = max(usual / (2 if trial.indirect else 10), 1e-3)
        elif trial.result is Result.TOO_LARGE and off > 0:
            # A lower bound: the need is above it by an unknown part of the usual error.
            off, error = off + usual / 2, usual / 2
        else:
            continue
        rows.append(_ErrorRow(index=trial.index, off=off, error=error, indirect=False))
    assumed = AssumedErrors(offset=usual / 2**0.5, own=usual / 2**0.5)
    errors = learn(prior, _errors(rows), assumed, None, None)
    # Some are predicted less exactly than others, and stay so until they are tried.
    return replace(errors, variance=errors.variance * (prior.need_error / usual) ** 2)


def _runs(
    prior: Prior, trials: Sequence[Trial], past: Past | None, fits: Array, log_need: Array
) -> Array:
    """Probability to run where memory suffices: assumed, times successes over those expected."""
    runs = prior.runs
    if past is not None:
        near = alike_again(prior.features, past.features)
        near = near * alike(prior.workload[None, :], past.workload)
        successes = (DOUBT + near @ past.ran) / (DOUBT + near @ past.expected)
        runs = runs * np.clip(successes, 0.05, 1.0)
    ended = [t for t in trials if t.result in HAVE_RUN or t.result in HAVE_NOT_RUN]
    if ended:
        tried = np.array([t.index for t in ended], dtype=np.intp)
        ran = np.array([float(t.result in HAVE_RUN) for t in ended])
        need = (log_need - log_need.mean()) / MEMORY_DISTANCE
        points = np.column_stack([prior.features, need])
        near = alike(points, points[tried])
        successes = (1 + 2 * (near @ ran)) / (1 + 2 * (near @ (runs * fits)[tried]))
        runs = runs * np.clip(successes, 0.02, 10.0)
    return np.minimum(runs, 0.99)
