"""The belief about every candidate after the trials: its speed, its memory, and that it runs.

Speed and memory are each the prediction times what it is believed to be off by. The probability
that a configuration runs where memory suffices is the assumed one, times the successes nearby over
those that were expected there.

Errors of predictions are learned as logarithms from trials, of this search and of others, by a
Gaussian process over configurations, of four parts: an offset that a whole search has in common
(another machine, other versions), a part that fades with the distance of configurations, one of
each configuration for itself (some stall, unexplained), and a part that searches share, which fades
with the distance of their workloads too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import erf, exp, hypot, inf, log

import numpy as np

from tuner.search.kernel import (
    Array,
    ByContents,
    Posterior,
    Rows,
    alike,
    alike_again,
    alike_rows,
    log_likelihood,
    one_thread,
    regress,
    solved,
)
from tuner.search.trials import Past, Prior, Result, Trial

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
# Trials by which sizes of errors are judged, the first ones: each size that is tried takes the cube
# of their number. Of 300 to 340 trials of three studies of 480 probes the same sizes are chosen.
MOST_JUDGED = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialErrors:
    """Errors of the predictions of ``k`` experts for ``m`` trials of this search."""

    index: Rows  # rows of the candidates, shape ``(m,)``
    off: Array  # logarithm of the measured value over the predicted ones, shape ``(m, k)``
    error: Array  # standard deviation of that, shape ``(m,)``
    indirect: Array  # 1 for trials that were run in another way, which share :data:`SHIFT`; else 0
    judged: int  # how many of them, the first, tell how large errors are, and who is right


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSizes:
    """Standard deviations of the parts of errors, as they may be."""

    offset: float
    smooth: float
    single: float
    doubt: float = 0.0  # how much less likely than the usual ones before any trial, in logarithms
    least: int = 0  # trials before which they are not considered

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

    mean: Array  # shape ``(n, k)``
    spread: Array  # its trials' covariance with candidates, made white, shape ``(p, n)``
    known: Array  # variance that is known by it, shape ``(n,)``
    amplitude: float  # standard deviation of the part that searches share


def likeliest(
    near: Array, errors: TrialErrors, choices: Sequence[ErrorSizes], told: Told | None = None
) -> ErrorSizes:
    """The sizes of errors that make the trials most likely by which they are judged; arguments as
    of :func:`learn`."""
    judged = slice(min(errors.judged, MOST_JUDGED))
    off, fixed = _against(near[:, judged], errors, told, judged)
    index = errors.index[judged]
    among, same = near[index, judged], np.equal.outer(index, index)

    def fit(sizes: ErrorSizes) -> float:
        between = fixed + sizes.between(among)
        between[same] += sizes.single**2
        likely = log_likelihood(off, between, errors.error[judged])
        return float(np.logaddexp.reduce(likely)) - sizes.doubt

    return max((one for one in choices if errors.judged >= one.least), key=fit)


def _against(
    near: Array, errors: TrialErrors, told: Told | None, which: slice
) -> tuple[Array, Array]:
    """What trials are off by, beside what the past says; and the part of their covariance that does
    not hang on the sizes of errors."""
    index, off, indirect = errors.index[which], errors.off[which], errors.indirect[which]
    fixed = SHIFT**2 * np.outer(indirect, indirect)
    if told is not None:
        ours = told.spread[:, index]
        fixed += told.amplitude**2 * near[index] - ours.T @ ours
        off = off - told.mean[index]
    return off, fixed


def learn(
    near: Array,
    errors: TrialErrors,
    sizes: ErrorSizes,
    told: Told | None = None,
    at: Rows | None = None,
) -> Posterior:
    """The believed errors of the candidates' predictions.

    Args:
        near: similarity of all candidates with those that were tried, shape ``(n, m)``.
        errors: of trials of this search.
        sizes: of errors.
        told: by earlier searches.
        at: rows of candidates; all of them by default.
    """
    index, points = errors.index, slice(None) if at is None else at
    off, between = _against(near, errors, told, slice(None))
    between += sizes.between(near[index])
    between[np.equal.outer(index, index)] += sizes.single**2
    shared, known, cross = 0.0, np.zeros(1), np.zeros(1)
    if told is not None:
        ours = told.spread[:, index]
        shared, known = told.amplitude**2, told.known[points]
        cross = told.spread[:, points].T @ ours
    own = sizes.offset**2 + sizes.smooth**2 + sizes.single**2 + shared - known
    crossed = near[points] * (sizes.smooth**2 + shared)
    crossed += sizes.offset**2 - cross
    if at is None:
        crossed[index, np.arange(len(index))] += sizes.single**2
    else:
        crossed[np.equal.outer(at, index)] += sizes.single**2
    found = regress(off, between, errors.error, crossed, np.broadcast_to(own, len(crossed)))
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


# Error of the time of one candidate that was run in another way, beside the one that all share.
INDIRECT = 0.1
# Least error of one timing, a standard deviation of its logarithm: runs differ by so much.
LEAST_ERROR = 0.02
# Ends to which an earlier trial's excess is cut: how slow the hopeless are teaches nothing. What
# was ended for its time may hang, and is taken to be slower than believed by the upper one at most.
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


def normal_cdf(z: Array) -> Array:
    """The cumulative distribution of the standard normal."""
    found = np.fromiter(map(erf, (z / 2**0.5).ravel().tolist()), np.float64, z.size)
    return np.asarray(0.5 * (1 + found.reshape(z.shape)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Belief:
    """Arrays have shape ``(n,)`` if no other is said, one number per candidate."""

    weights: Array  # shape ``(k,)``: the probability of each expert; they add up to 1
    means: Array  # shape ``(k, n)``: logarithm of the seconds that each expert believes in
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
    trials = sorted(
        trials, key=lambda t: (t.is_believed, t.index, t.indirect, t.result.value, t.seconds or 0.0)
    )
    past = None if past is None or not past.size else past
    tried = np.array([trial.index for trial in trials], dtype=np.intp)
    near = alike_rows(prior.features, tried).T
    need = _memory(prior, trials, near)
    log_need, need_error = prior.log_need + need.mean[:, 0], np.sqrt(need.variance + 1e-6)
    fits = normal_cdf((prior.log_limit - log_need) / need_error)
    weights, means, variances = _experts(prior, trials, near, past)
    # Before any timing the whole search's offset is as uncertain for all, and orders nothing.
    common = 0.0 if any(t.seconds for t in trials) else OFFSET**2
    return Belief(
        weights=weights,
        means=means,
        errors=np.sqrt(np.maximum(variances - common, 1e-6)),
        log_need=log_need,
        need_error=need_error,
        fits=fits,
        # As if running were independent of fitting: failures that may be of memory are in both.
        succeeds=fits * _runs(prior, trials, near, past, fits, log_need),
    )


def believed_trials(belief: Belief, indices: Iterable[int]) -> list[Trial]:
    """Candidates as if each had run in the seconds that are believed; memory is left out.

    The "Kriging believer" of Ginsbourger, Le Riche and Carraro (2010).
    """
    return [
        Trial(
            index=index, result=Result.RAN, seconds=exp(belief.log_seconds[index]), is_believed=True
        )
        for index in indices
    ]


def _experts(
    prior: Prior, trials: Sequence[Trial], near: Array, past: Past | None
) -> tuple[Array, Array, Array]:
    """The probability of each expert, and mean and variance of the candidates' log seconds by it.

    Each set of constants is an expert by itself, and another one that was told of earlier searches:
    so these are believed as far as this search's own trials bear them out. Experts are as likely as
    they make those trials; before them all are as likely. What still runs bears nobody out.
    """
    # Unknown predictions are taken for the median of the others.
    base = np.array([
        one if not (gaps := np.isnan(one)).any()
        else np.zeros(len(one)) if gaps.all() else np.where(gaps, np.nanmedian(one), one)
        for one in prior.experts
    ])  # fmt: skip
    tolds: list[Told | None] = [None]
    if past is not None and (told := told_by(past, past.excess.clip(*CLIPPED), prior)) is not None:
        tolds.append(told)
    ran = [n for n, one in enumerate(trials) if one.seconds and one.result is Result.RAN]
    bounds = [n for n, one in enumerate(trials) if one.seconds and one.result in LOWER_BOUNDS]
    errors = _errors(base, [trials[n] for n in ran])
    # Bounds do not judge: they change nothing of the sizes of errors.
    tried = near[:, ran]
    sizes = [likeliest(tried, errors, SPEED, told) for told in tolds]
    if bounds:
        # A lower bound counts if it says more than the rest.
        at = np.array([trials[n].index for n in bounds], dtype=np.intp)
        found = [
            learn(tried, errors, one, told, at) for one, told in zip(sizes, tolds, strict=True)
        ]
        believed = _likely(errors, found) @ np.concatenate([base[:, at] + f.mean.T for f in found])
        above = zip(bounds, believed.tolist(), strict=True)
        slower = {
            n: _bound(trials[n], mean) for n, mean in above if log(trials[n].seconds or 1.0) > mean
        }
        ran += slower
        tried = near[:, ran]
        errors = replace(
            _errors(base, [slower.get(n, trials[n]) for n in ran]), judged=errors.judged
        )
    found = [learn(tried, errors, one, told) for one, told in zip(sizes, tolds, strict=True)]
    weights = _likely(errors, found)
    kept = np.flatnonzero(weights >= UNLIKELY)
    means = np.concatenate([base + one.mean.T for one in found])
    variances = np.repeat([one.variance for one in found], len(base), axis=0)
    return weights[kept] / weights[kept].sum(), means[kept], variances[kept]


def _likely(errors: TrialErrors, found: Sequence[Posterior]) -> Array:
    """The probability of each expert after the trials that it may be judged by."""
    likely = -np.concatenate([one.surprise[: errors.judged].sum(0) for one in found])
    weights = np.exp(likely - likely.max())
    return np.asarray(weights / weights.sum())


def _bound(trial: Trial, believed: float) -> Trial:
    """A lower bound as a measurement."""
    if trial.result is not Result.TIMED_OUT:
        return trial
    # It may hang, which is no measure of how slow others are.
    most = CLIPPED[1]
    return replace(trial, seconds=min(trial.seconds or inf, exp(believed + most)), error=most)


def _errors(base: Array, trials: Sequence[Trial]) -> TrialErrors:
    index = np.array([trial.index for trial in trials], dtype=np.intp)
    seconds = np.log([trial.seconds or 1.0 for trial in trials])
    errors = [hypot(t.error, INDIRECT) if t.indirect else t.error for t in trials]
    return TrialErrors(
        index=index,
        off=(seconds - base[:, index]).T,
        error=np.maximum(np.array(errors, dtype=float), LEAST_ERROR),
        indirect=np.array([trial.indirect for trial in trials], dtype=float),
        judged=sum(not trial.is_believed for trial in trials),
    )


def _memory(prior: Prior, trials: Sequence[Trial], near: Array) -> Posterior:
    """Errors of predicted needs; a trial that ran out of memory needs more than it had."""
    # Earlier searches are left out: only what ran has a measured need, which is then too low.
    usual = float(np.median(prior.need_error))
    rows, offs, errors = [], [], []
    for row, trial in enumerate(trials):
        off = log(trial.need_bytes or 1.0) - float(prior.log_need[trial.index])
        if not trial.need_bytes:
            continue
        if trial.result in (Result.RAN, Result.SLOW):
            # Measured, so much surer than predicted; half as sure where it ran in another way.
            error = max(usual / (2 if trial.indirect else 10), 1e-3)
        elif trial.result is Result.TOO_LARGE and off > 0:
            # A lower bound: the need is above it by an unknown part of the usual error.
            off, error = off + usual / 2, usual / 2
        else:
            continue
        rows.append(row)
        offs.append([off])
        errors.append(error)
    told = TrialErrors(
        index=np.array([trials[row].index for row in rows], dtype=np.intp),
        off=np.array(offs, dtype=float).reshape(-1, 1),
        error=np.array(errors, dtype=float),
        indirect=np.zeros(len(rows)),
        judged=len(rows),
    )
    tried = near[:, rows]
    found = learn(tried, told, likeliest(tried, told, need_sizes(usual)))
    # Some are predicted less exactly than others, and stay so until they are tried.
    return replace(found, variance=found.variance * (prior.need_error / usual) ** 2)


def _runs(
    prior: Prior,
    trials: Sequence[Trial],
    near: Array,
    past: Past | None,
    fits: Array,
    log_need: Array,
) -> Array:
    """Probability to run where memory suffices: assumed, times successes over those expected."""
    runs = prior.runs
    if past is not None:
        points = prior.features, past.features
        similar = alike_again(ByContents(points, *points))
        similar = similar * alike(prior.workload[None, :], past.workload)
        successes = (DOUBT + similar @ past.ran) / (DOUBT + similar @ past.expected)
        runs = runs * np.clip(successes, 0.05, 1.0)
    known = HAVE_RUN | HAVE_NOT_RUN
    ended = [n for n, one in enumerate(trials) if one.result in known]
    if ended:
        tried = np.array([trials[n].index for n in ended], dtype=np.intp)
        ran = np.array([float(trials[n].result in HAVE_RUN) for n in ended])
        need = log_need[:, None] / MEMORY_DISTANCE
        similar = near[:, ended] * alike(need, need[tried])
        successes = (1 + 2 * (similar @ ran)) / (1 + 2 * (similar @ (runs * fits)[tried]))
        runs = runs * np.clip(successes, 0.02, 10.0)
    return np.minimum(runs, 0.99)
