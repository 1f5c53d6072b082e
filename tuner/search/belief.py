"""The belief about every candidate after the trials: its speed, its memory, and that it runs.

Speed and memory are each the prediction times what it is believed to be off by
(:mod:`tuner.search.excess`). The probability that a configuration runs where memory suffices is the
assumed one, times the successes nearby over those that were expected there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import erf, exp, hypot, log

import numpy as np

from tuner.search.excess import AssumedErrors, TrialErrors, learn, nearest
from tuner.search.kernel import Array, Posterior, Rows, alike, alike_again, one_thread
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
# Probability below which an expert is not listened to.
UNLIKELY = 0.01
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Belief:
    """Arrays have shape ``(n,)`` if no other is said, one number per candidate."""

    weights: Array
    """Shape ``(k,)``: the probability of each expert; they add up to 1."""
    means: Array
    """Shape ``(k, n)``: logarithm of the seconds that each expert believes in."""
    errors: Array
    """Shape ``(k, n)``: its standard deviation; before any trial, without what all candidates have
    in common."""
    log_need: Array
    need_error: Array
    fits: Array
    succeeds: Array

    @cached_property
    def log_seconds(self) -> Array:
        """Mean of the experts."""
        return np.asarray(self.weights @ self.means)

    @cached_property
    def error(self) -> Array:
        """Standard deviation of the experts' mixture."""
        apart = self.means - self.log_seconds
        return np.asarray(np.sqrt(self.weights @ (self.errors**2 + apart**2)))


@one_thread()
def believe(prior: Prior, trials: Sequence[Trial], past: Past | None = None) -> Belief:
    """The belief after ``trials``; their order does not matter."""
    trials = sorted(trials, key=lambda t: (t.index, t.indirect, t.result.value, t.seconds or 0.0))
    past = None if past is None or not past.size else nearest(past, prior.workload)
    need = _memory(prior, trials)
    log_need, need_error = prior.log_need + need.mean, np.sqrt(need.variance + 1e-6)
    fits = normal_cdf((prior.log_limit - log_need) / need_error)
    weights, speeds = _experts(prior, trials, past)
    # Before any timing the whole search's offset is as uncertain for all, and orders nothing.
    common = 0.0 if any(t.seconds for t in trials) else SPEED.offset**2
    return Belief(
        weights=weights,
        means=np.array([one.mean for one in speeds]),
        errors=np.sqrt(np.maximum([one.variance - common for one in speeds], 1e-6)),
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
        Trial(
            index=index,
            result=Result.RAN,
            seconds=exp(belief.log_seconds[index]),
            is_believed=True,
        )
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


def _experts(
    prior: Prior, trials: Sequence[Trial], past: Past | None
) -> tuple[Array, list[Posterior]]:
    """The probability of each expert, and what it believes of the candidates' seconds.

    Each set of constants is an expert by itself, and another one that was told of earlier searches:
    so these are believed as far as this search's own trials bear them out. Experts are as likely as
    they make those trials; before them all are as likely. What still runs bears nobody out.
    """
    told = (None,) if past is None else (None, past)
    kinds = [(number, each) for number in range(len(prior.experts)) for each in told]
    experts = [_Expert(prior, number, trials, each) for number, each in kinds]
    ended, judged = [one for one in trials if not one.is_believed], experts
    if len(ended) < len(trials):
        judged = [_Expert(prior, number, ended, each) for number, each in kinds]
    likely = np.array([expert.log_likelihood for expert in judged])
    weights = np.exp(likely - likely.max())
    kept = np.flatnonzero(weights >= UNLIKELY * weights.sum())
    return weights[kept] / weights[kept].sum(), [experts[place].believe() for place in kept]


class _Expert:
    """One expert's errors at this search's trials; a lower bound counts if it says more than the
    rest.
    """

    def __init__(
        self, prior: Prior, number: int, trials: Sequence[Trial], past: Past | None
    ) -> None:
        self._prior, self._past = prior, past
        self._base = _filled(prior.experts[number])
        self._off = None if past is None else np.clip(past.excess[:, number], *CLIPPED)
        rows = [(trial, self._row(trial)) for trial in trials if trial.seconds]
        ran = [row for trial, row in rows if trial.result is Result.RAN]
        bounds = [(trial, row) for trial, row in rows if trial.result in LOWER_BOUNDS]
        self._errors = _errors(ran)
        first = self._learn(np.array([trial.index for trial, _ in bounds], dtype=np.intp))
        # those of earlier searches come first
        self.log_likelihood = -float(first.surprise[len(first.surprise) - len(ran) :].sum())
        slower = []
        for (trial, row), mean in zip(bounds, first.mean.tolist(), strict=True):
            if row.off > mean and trial.result is Result.TIMED_OUT:
                # It may hang, which is no measure of how slow others are.
                most = CLIPPED[1]
                row = replace(row, off=min(row.off, mean + most), error=most)
            if row.off > mean:
                slower.append(row)
        if slower:
            self._errors = _errors([*ran, *slower])

    def believe(self) -> Posterior:
        found = self._learn(None)
        return replace(found, mean=self._base + found.mean)

    def _learn(self, at: Rows | None) -> Posterior:
        return learn(self._prior, self._errors, SPEED, self._past, self._off, at)

    def _row(self, trial: Trial) -> _ErrorRow:
        error = hypot(trial.error, INDIRECT) if trial.indirect else trial.error
        return _ErrorRow(
            index=trial.index,
            off=log(trial.seconds or 1.0) - float(self._base[trial.index]),
            error=max(error, LEAST_ERROR),
            indirect=trial.indirect,
        )


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
