"""Predicted speeds, corrected by what other studies measured.

A search asks which settings are faster than others (:mod:`tuner.search.excess`); this asks how long
they take. What a prediction is off by, as a logarithm, is a Gaussian process of three parts: what
studies of similar workloads share, for all settings and for similar ones; what one study has for
itself; and what single settings have. How large they are, the studies themselves decide.

NumPy, which is slow to import: this module is imported where a study has a past.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import exp, log

import numpy as np

from tuner.cost.prediction import Prediction
from tuner.planner.history import past_of, studies_alike
from tuner.quantity import QUANTILE, Provenance, Quantity
from tuner.search.features import Array, settings_features, workload_features
from tuner.search.kernel import ByContents, alike, log_likelihood, one_thread, regress
from tuner.search.trials import Past
from tuner.settings import Settings
from tuner.study import Study

NEAR = 0.5
"""Similarity from which a measurement is evidence for other settings: that of workloads of which
one size differs by a little more than two doublings."""
LEVEL = 0.35
"""What predictions are off by before anything was measured, as a standard deviation of their
logarithm: the interval of those that nothing was fitted on (``low_unfitted`` in costs.toml)."""
RATES = 1.5
"""What predictions at assumed rates are off by, all of them alike, beside that: a factor of 4.5 is
one standard deviation. One study tells most of it."""
SHAPE = (0.05, 0.2, 0.8)
"""What settings may be off by alike in similar workloads, beside that."""
OWN = (0.03, 0.1, 0.3)
"""What a whole study may be off by for itself."""
USUAL_OWN = 0.2
"""What is usual for that; a past of one study does not say what another may differ by."""
DOUBT = 4.0
"""Factor by which it may differ from that, either way, as one standard deviation."""
SINGLE = (0.03, 0.1, 0.3, 0.8)
"""What single settings of a study may be off by."""
OUTLIER = 1.5
"""Standard deviations from which a row is weighted down."""
MEDIAN_TO_DEVIATION = 1.4826
"""The standard deviation over the median distance, of a normal distribution."""
PASSES = 5
"""Of weighting; there is no need for more exactness."""
MOST_ROWS = 100
"""Measured settings that are looked at, those of the most similar workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Standard deviations of the parts of what predictions are off by."""

    common: float
    """:data:`RATES` where rates are assumed; else nothing."""
    shape: float
    """Of :data:`SHAPE`."""
    own: float
    """Of :data:`OWN`."""
    single: float
    """Of :data:`SINGLE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What other studies say of the step time of settings."""

    factor: float
    """What the predicted seconds are multiplied by."""
    low: float
    """Lower end of the 80% interval of that factor."""
    high: float
    """Upper end."""
    near: float
    """Similarity of the measured settings that are most alike, workloads included: 1 if equal."""

    def applied(self, prediction: Prediction) -> Prediction:
        """A prediction with its speed after this: ``transferred`` where there is evidence near."""
        step, speed = prediction.step_time_s, prediction.tokens_per_s_per_gpu
        assert step.value is not None
        assert speed.value is not None
        provenance = Provenance.TRANSFERRED if self.near >= NEAR else step.provenance
        return replace(
            prediction,
            step_time_s=Quantity(
                value=step.value * self.factor,
                low=step.value * self.low,
                high=step.value * self.high,
                provenance=provenance,
            ),
            tokens_per_s_per_gpu=Quantity(
                value=speed.value / self.factor,
                low=speed.value / self.high,
                high=speed.value / self.low,
                provenance=provenance,
            ),
        )


def corrected(
    study: Study, settings: Sequence[Settings], *, at_assumed_rates: bool = False
) -> Mapping[Settings, Corrected]:
    """What the study's past says of settings; nothing where no study is near.

    Args:
        study: with its past.
        settings: legal ones of it.
        at_assumed_rates: whether the predictions that are corrected are at assumed rates of the
            devices, as those of the past then are too.
    """
    past = past_of(study)
    if past is None or not settings:
        return {}
    features = settings_features(settings, study.question.cluster)
    common = RATES if at_assumed_rates else 0.0
    found = corrected_by(past, _workload(study), features, common=common)
    return dict(zip(settings, found, strict=True)) if found else {}


@one_thread()
def corrected_by(
    past: Past, workload: Array, features: Array, *, common: float = 0.0
) -> list[Corrected]:
    """What earlier trials say of settings; nothing where none is near.

    All settings of a question are corrected or none, for the order of those that are near and of
    those that are not would be of no meaning otherwise.

    Args:
        past: the trials.
        workload: features of the question's workload, shape ``(w,)``.
        features: of the settings, shape ``(n, d)``.
        common: what all predictions are off by alike, as a standard deviation of their logarithm.
    """
    rows = _timed(past, workload)
    if rows is None:
        return []
    similar = alike(workload[None, :], rows.workload)
    near = similar * alike(features, rows.features)
    if near.max() < NEAR:
        return []
    arrays = (rows.study, rows.features, rows.workload, rows.log_excess)
    sizes = _sizes(ByContents(rows, *arrays), common)
    between = _covariance(rows)(sizes)
    shared = common**2 + LEVEL**2 * similar + sizes.shape**2 * near
    whole = common**2 + LEVEL**2 + sizes.shape**2 + sizes.own**2 + sizes.single**2
    off = regress(
        rows.log_excess,
        between,
        _noise(rows, between, sizes.single),
        shared,
        np.full(len(features), whole),
    )
    width = QUANTILE * np.sqrt(off.variance)
    found = zip(off.mean, width, near.max(1), strict=True)
    return [_corrected(*map(float, numbers)) for numbers in found]


def studies_near(study: Study) -> Iterator[Study]:
    """The earlier studies whose workload is near and that timed steps; the most similar first."""
    past = past_of(study)
    rows = None if past is None else _timed(past, _workload(study))
    if rows is not None:
        yield from studies_alike(study, rows, NEAR)


def _corrected(mean: float, width: float, near: float) -> Corrected:
    return Corrected(factor=exp(mean), low=exp(mean - width), high=exp(mean + width), near=near)


def _workload(study: Study) -> Array:
    return workload_features(study.question.workload, study.question.cluster)


def _timed(past: Past, workload: Array) -> Past | None:
    """At most :data:`MOST_ROWS` trials that were timed, those of the most similar workloads."""
    known = np.flatnonzero(~np.isnan(past.log_excess))
    if not len(known):
        return None
    distance = ((past.workload[known] - workload) ** 2).sum(1)
    return past.take(known[np.argsort(distance, kind="stable")[:MOST_ROWS]])


def _covariance(rows: Past) -> Callable[[Sizes], Array]:
    """Of the rows with themselves, shape ``(m, m)``, by the sizes of its parts."""
    similar = alike(rows.workload, rows.workload)
    same = np.equal.outer(rows.study, rows.study).astype(float)
    near = similar * alike(rows.features, rows.features)

    def of(sizes: Sizes) -> Array:
        studies = sizes.common**2 + LEVEL**2 * similar + sizes.own**2 * same
        return np.asarray(studies + sizes.shape**2 * near)

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
def _sizes(key: ByContents[Past], common: float) -> Sizes:
    """What makes the past most likely; a few studies hardly say what another may differ by."""
    rows = key.value
    covariance = _covariance(rows)
    own = OWN if len(set(rows.study.tolist())) > 1 else (USUAL_OWN,)

    def fit(choice: Sizes) -> float:
        noise = np.full(rows.size, choice.single)
        usual = -0.5 * (log(choice.own / USUAL_OWN) / log(DOUBT)) ** 2
        return usual + log_likelihood(rows.log_excess, covariance(choice), noise)

    choices = [
        Sizes(common=common, shape=a, own=b, single=c) for a, b, c in product(SHAPE, own, SINGLE)
    ]
    return max(choices, key=fit)
