"""Compares the probes of earlier studies with what is predicted of them today.

NumPy, which is slow to import: this module is imported where a study has a past.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import exp, log, nan

import numpy as np

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import BROKEN, PROBED, Outcome
from tuner.core.quantity import QUANTILE, Provenance, Quantity
from tuner.core.study import Study, by_settings
from tuner.core.workload import Workload
from tuner.cost.calibration import Calibration
from tuner.planner.forecast import Asked
from tuner.planner.knowledge import measurements_of
from tuner.planner.prior import RUNS, predicted
from tuner.planner.timing import speed_of, step_time
from tuner.search.kernel import Array, ByContents, alike, log_likelihood, one_thread, regress
from tuner.search.trials import Past, joined, settings_features, workload_features
from tuner.text import kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of the probes of one configuration in an earlier study."""

    settings: Settings
    seconds: float | None  # of an optimizer step; ``None`` where none was timed
    ran: bool


# One step of planning asks for it several times. The next one has read the past anew: it is another
# object then, and its predictions are what is kept.
@kept(maxsize=4)
def past_of(past: tuple[Study, ...], calibration: Calibration | None) -> Past | None:
    """The probes of a study's past as trials of earlier searches; ``None`` where there are none.

    Predictions are of each one's own question, by arithmetic, with the rates that are known of the
    devices today. Each settings is one trial: repetitions are pooled, and what was measured goes
    before what was emulated.
    """
    parts = []
    for number, study in enumerate(past):
        question = study.question
        if found := found_in(study):
            asked = Asked(question, calibration)
            steps = (predicted(asked, one.settings)[1] for one in found)
            seconds = [[step.value or nan for step in each] for each in steps]
            parts.append(past_trials(number, question.workload, question.cluster, found, seconds))
    return joined(parts)


def past_trials(
    number: int,
    workload: Workload,
    cluster: Cluster,
    found: Sequence[Found],
    predicted_s: Sequence[Sequence[float]],
) -> Past:
    """Turns the results of one earlier study, with what each expert predicts, into trials of a
    search."""
    measured = np.array([one.seconds or nan for one in found], dtype=float)
    return Past(
        study=np.full(len(found), float(number)),
        features=settings_features([one.settings for one in found], workload, cluster),
        workload=np.tile(workload_features(workload, cluster), (len(found), 1)),
        excess=np.log(measured[:, None] / np.array(predicted_s)),
        ran=np.array([float(one.ran) for one in found]),
        expected=np.full(len(found), RUNS),
    )


def studies_alike(study: Study, past: Past, least: float) -> Iterator[Study]:
    """The earlier studies with trials in ``past`` whose workload is at least so much alike."""
    question = study.question
    here = workload_features(question.workload, question.cluster)
    similar = alike(here[None, :], past.workload)[0]
    weights = {int(n): float(w) for n, w in zip(past.study, similar, strict=True)}
    for number, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        if weight >= least:
            yield study.past[number]


def found_in(study: Study) -> tuple[Found, ...]:
    """Gathers a study's results by configuration. Outcomes that teach nothing are left out."""
    groups: dict[Settings, Found] = {}
    for fidelity in reversed(PROBED):
        ended = by_settings(probe for probe in study.at(fidelity).probes if probe.measurement)
        for settings, probes in ended.items():
            measurements = measurements_of(probes)
            # One repetition that ran says that the configuration runs. Those that ran out of memory
            # or time say nothing of one that has enough of both.
            if ran := [m for m in measurements if m.outcome is Outcome.OK]:
                seconds = step_time(ran, settings.gradient_accumulation_steps).value
                groups[settings] = Found(settings=settings, seconds=seconds, ran=True)
            elif any(m.outcome in BROKEN for m in measurements):
                groups[settings] = Found(settings=settings, seconds=None, ran=False)
    return tuple(groups.values())


# Similarity from which a measurement is evidence for other settings: that of workloads of which one
# size differs by a little more than two doublings.
NEAR = 0.5
# What predictions are off by before anything was measured, as a standard deviation of their
# logarithm: the interval of those that nothing was fitted on (``unfitted`` in costs.toml).
LEVEL = 0.35
# What predictions at assumed rates are off by, all of them alike, beside that: a factor of 4.5 is
# one standard deviation. One study tells most of it.
RATES = 1.5
# What settings may be off by alike in similar workloads, beside that.
SHAPE = (0.05, 0.2, 0.8)
# What a whole study may be off by for itself.
OWN = (0.03, 0.1, 0.3)
# What is usual for that; a past of one study does not say what another may differ by.
USUAL_OWN = 0.2
# Factor by which it may differ from that, either way, as one standard deviation.
DOUBT = 4.0
# What single settings of a study may be off by.
SINGLE = (0.03, 0.1, 0.3, 0.8)
# Standard deviations from which a row is weighted down.
OUTLIER = 1.5
# The standard deviation over the median distance, of a normal distribution.
MEDIAN_TO_DEVIATION = 1.4826
# Of weighting; there is no need for more exactness.
PASSES = 5
# Measured settings that are looked at, those of the most similar workloads.
MOST_ROWS = 100


# Standard deviations of what a study's shape, itself, and single settings of it are off by.
Deviations = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Step times of configurations, corrected by other studies."""

    factor: float
    low: float  # lower end of the 80% interval of that factor
    high: float
    near: float
    """Similarity of the measured settings that are most alike, workloads included: 1 if equal."""

    def applied(self, found: Evaluation) -> Evaluation:
        """An estimate with its speed after this: ``transferred`` where there is evidence near."""
        step, speed = found.step_time_s, found.tokens_per_s_per_gpu
        assert step.value is not None
        assert speed.value is not None
        provenance = Provenance.TRANSFERRED if self.near >= NEAR else step.provenance
        off = Quantity(value=self.factor, low=self.low, high=self.high, provenance=provenance)
        return replace(
            found,
            factor=self.factor,
            near=self.near,
            step_time_s=off.scaled(step.value),
            tokens_per_s_per_gpu=off.under(speed.value),
        )


@one_thread()
def corrected_by(
    past: Past, workload: Array, features: Array, *, common: float = 0.0
) -> list[Corrected]:
    """Corrects configurations by earlier trials; nothing where none is near.

    All settings of a question are corrected or none, for the order of those that are near and of
    those that are not would be of no meaning otherwise.
    """
    rows = _timed(past, workload)
    if rows is None:
        return []
    similar = alike(workload[None, :], rows.workload)
    near = similar * alike(features, rows.features)
    if near.max() < NEAR:
        return []
    arrays = (rows.study, rows.features, rows.workload, rows.log_excess)
    shape, own, single = sizes = _sizes(ByContents(rows, *arrays), common)
    between = _covariance(rows, common)(sizes)
    shared = common**2 + LEVEL**2 * similar + shape**2 * near
    whole = common**2 + LEVEL**2 + shape**2 + own**2 + single**2
    noise = _noise(rows, between, single)
    off = regress(rows.log_excess, between, noise, shared, np.full(len(features), whole))
    width = QUANTILE * np.sqrt(off.variance)
    rows_found = zip(off.mean.tolist(), width.tolist(), near.max(1).tolist(), strict=True)
    return [
        Corrected(factor=exp(mean), low=exp(mean - half), high=exp(mean + half), near=alike_most)
        for mean, half, alike_most in rows_found
    ]


def studies_near(study: Study, past: Past | None) -> Iterator[Study]:
    """The earlier studies whose workload is near and that timed steps; the most similar first.

    ``past`` is what they have found (:func:`past_of`).
    """
    rows = None if past is None else _timed(past, _workload(study))
    if rows is not None:
        yield from studies_alike(study, rows, NEAR)


def _workload(study: Study) -> Array:
    return workload_features(study.question.workload, study.question.cluster)


def _timed(past: Past, workload: Array) -> Past | None:
    """At most :data:`MOST_ROWS` trials that were timed, those of the most similar workloads."""
    known = np.flatnonzero(~np.isnan(past.log_excess))
    if not len(known):
        return None
    distance = ((past.workload[known] - workload) ** 2).sum(1)
    return past.take(known[np.argsort(distance, kind="stable")[:MOST_ROWS]])


def _covariance(rows: Past, common: float) -> Callable[[Deviations], Array]:
    """Covariance of the rows with themselves, shape ``(m, m)``, by the sizes of its parts."""
    similar = alike(rows.workload, rows.workload)
    same = np.equal.outer(rows.study, rows.study).astype(float)
    near = similar * alike(rows.features, rows.features)

    def of(sizes: Deviations) -> Array:
        shape, own, _ = sizes
        return np.asarray(common**2 + LEVEL**2 * similar + own**2 * same + shape**2 * near)

    return of


def _noise(rows: Past, between: Array, single: float) -> Array:
    """Standard deviation of each row for itself, larger for those that fit in with no others.

    A few settings take many times as long as predicted (an exchange stalls, an allocator gives
    memory back), and would else pull all others along. They are weighted down by the square of
    their distance in :data:`OUTLIER`, over and again (iteratively reweighted least squares; Huber
    1981, Robust Statistics, chapter 7, where it is the distance itself).
    """
    noise = np.full(rows.size, single)
    for _ in range(PASSES):
        fit = regress(rows.log_excess, between, noise, between, np.diag(between))
        distance = np.abs(rows.log_excess - fit.mean)
        usual = max(float(np.median(distance)) * MEDIAN_TO_DEVIATION, SINGLE[0])
        noise = single * np.maximum(1.0, distance / (OUTLIER * usual))
    return noise


# A study is planned and answered several times in a process, and its past stays the same.
@lru_cache(maxsize=4)
def _sizes(key: ByContents[Past], common: float) -> Deviations:
    """Finds the sizes that make the past most likely; a few studies hardly say how another may
    differ."""
    rows = key.value
    covariance = _covariance(rows, common)
    own = OWN if len(set(rows.study.tolist())) > 1 else (USUAL_OWN,)

    def fit(choice: Deviations) -> float:
        noise = np.full(rows.size, choice[2])
        usual = -0.5 * (log(choice[1] / USUAL_OWN) / log(DOUBT)) ** 2
        return usual + float(log_likelihood(rows.log_excess, covariance(choice), noise))

    return max(product(SHAPE, own, SINGLE), key=fit)


def transferred(
    study: Study, estimates: Mapping[Settings, Evaluation], past: Past | None
) -> Mapping[Settings, Evaluation]:
    """Estimates with their times corrected, where some study is near.

    Where no time is known for want of rates, rates are assumed, for the study and for its past
    alike: what these are off by, the past then tells, and nothing is shown at assumed rates alone.
    """
    timed = [s for s, e in estimates.items() if e.step_time_s.value is not None]
    settings = timed or list(estimates)
    if past is None or not settings:
        return estimates
    features = settings_features(settings, study.question.workload, study.question.cluster)
    found = corrected_by(past, _workload(study), features, common=0.0 if timed else RATES)
    if not found:  # no study is near
        return estimates
    moved, asked = dict(estimates), Asked(study.question, None)
    for one, off in zip(settings, found, strict=True):
        estimate = estimates[one]
        if not timed:
            _, (step, *_) = predicted(asked, one)
            speed = speed_of(step, study.question)
            why = "" if estimate.fits else estimate.why
            estimate = replace(estimate, step_time_s=step, tokens_per_s_per_gpu=speed, why=why)
        moved[one] = off.applied(estimate)
    return moved
