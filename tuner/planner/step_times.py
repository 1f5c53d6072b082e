"""Findings that the fastest was chosen from, with intervals that hold for what was chosen.

Values stay what was measured; only the ends of intervals move (:mod:`tuner.planner.step_times`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, exp, hypot, log, pi, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.core.configuration import Settings
from tuner.core.measurement import Measurement, Outcome
from tuner.core.quantity import QUANTILE, Quantity
from tuner.core.words import change_range_text, change_text, probes_text
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.ranking import indistinguishable
from tuner.planner.timing import Luck, logs, runs_timed, seen_luck
from tuner.text import Same


def fair(known: Knowledge) -> Mapping[Settings, Finding]:
    """All that fits, contenders with intervals that hold whichever of them is the answer.

    Contenders are those that the fastest cannot be told apart from, or that are nearly as fast.
    One that has none beside it keeps its own interval.
    """
    return _fair(Same(known))


# The sentences of one answer, and its figures, ask for the same again.
@lru_cache(maxsize=8)
def _fair(key: Same[Knowledge]) -> Mapping[Settings, Finding]:
    known = key.value
    # imports NumPy

    fitting = known.fitting
    found = {finding.settings: finding for finding in fitting}
    contenders = [f for f in fitting if indistinguishable(fitting[0], f, REACH)]
    if len(contenders) < 2:
        return found
    luck = seen_luck(map(_measurements, known.findings.values()))
    seen = []
    for one in contenders:
        value, low, high = logs(one.spread)
        runs = runs_timed(_measurements(one), one.settings.gradient_accumulation_steps)
        whole = ((value - low) ** 2 + (high - value) ** 2) / 2
        steps = max(whole - luck.half_width(runs) ** 2, 0.0) / QUANTILE**2
        seen.append(Seen(value=value, runs=runs, steps=steps))
    ends = joint_ends(tuple(seen), luck)
    return found | {f.settings: _moved(f, *at) for f, at in zip(contenders, ends, strict=True)}


def _measurements(finding: Finding) -> list[Measurement]:
    return [probe.measurement for probe in finding.probes if probe.measurement]


def _moved(finding: Finding, low: float, high: float) -> Finding:
    """A finding with other ends of its interval, in logarithms; what the model adds is kept."""
    whole, timed = logs(finding.step_time), logs(finding.spread)
    return replace(
        finding,
        step_time=_with_ends(
            finding.step_time, low + whole[1] - timed[1], high + whole[2] - timed[2]
        ),
        spread=_with_ends(finding.spread, low, high),
    )


def _with_ends(quantity: Quantity, low: float, high: float) -> Quantity:
    """The interval, made to hold the value: an answer's own time is never told to be impossible."""
    value = quantity.value
    assert value is not None
    return replace(quantity, low=min(exp(low), value), high=max(exp(high), value))


class HasTime(Protocol):
    """Whatever has a step time that is known."""

    @property
    def step_time(self) -> Quantity:
        """Seconds of an optimizer step."""

    @property
    def spread(self) -> Quantity:
        """The same with the interval of the timed steps alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Settings of which steps were timed, all of them or not."""

    settings: Settings
    """Which."""
    step_time: Quantity
    """Seconds of an optimizer step; known."""
    spread: Quantity
    """The same with the interval of the timed steps alone."""
    needed_bytes: int
    """What one device needed."""
    probes: tuple[int, ...]
    """Where that is known from."""
    ended_early: bool = False
    """Whether they were too slow to be timed further."""

    @property
    def seconds(self) -> float:
        """The step time's value."""
        assert self.step_time.value is not None
        return self.step_time.value

    @property
    def source(self) -> str:
        """``probe #3``, or ``probe #3, ended early``."""
        return f"probe {probes_text(self.probes)}{', ended early' if self.ended_early else ''}"


def timed_settings(known: Knowledge) -> Mapping[Settings, Timed]:
    """All legal settings of which steps were timed, whether they fit or not, in their order."""
    return _timed_settings(Same(known))


# The sentences of one answer ask for the same again.
@lru_cache(maxsize=4)
def _timed_settings(key: Same[Knowledge]) -> Mapping[Settings, Timed]:
    known, found = key.value, {}
    early = _ended_early(known)
    for settings in known.space.legal:
        finding, slow = known.findings.get(settings), known.slow.get(settings)
        if finding is not None and finding.step_time.value is not None:
            found[settings] = timed(finding)
        elif slow is not None and slow.step_time.value is not None:
            found[settings] = Timed(
                settings=settings,
                step_time=slow.step_time,
                spread=slow.step_time,
                needed_bytes=slow.needed_bytes or 0,
                probes=tuple(early[settings]),
                ended_early=True,
            )
    return found


def compared_settings(known: Knowledge) -> Mapping[Settings, Timed]:
    """Times configurations with intervals for comparing what was chosen for its speed."""
    return {**timed_settings(known), **{s: timed(found) for s, found in fair(known).items()}}


def timed(finding: Finding) -> Timed:
    """A finding whose step time is known, as what it is compared with."""
    return Timed(
        settings=finding.settings,
        step_time=finding.step_time,
        spread=finding.spread,
        needed_bytes=finding.needed_bytes,
        probes=tuple(probe.id for probe in finding.probes),
    )


def _ended_early(known: Knowledge) -> dict[Settings, list[int]]:
    """Numbers of the probes that were ended for their slowness, by settings."""
    found: dict[Settings, list[int]] = defaultdict(list)
    for probe in known.study.probes:
        if outcome_of(probe) is Outcome.STOPPED_EARLY:
            found[probe.request.settings].append(probe.id)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeChange:
    """A ratio of two step times."""

    ratio: float
    """The other's over the first one's."""
    low: float
    """Lower end of its 80% interval."""
    high: float
    """Upper end."""

    def __str__(self) -> str:
        return f"{change_text(self.ratio)}, {self.interval_text}"

    @property
    def interval_text(self) -> str:
        """``80% interval 20% to 30% longer``."""
        return f"80% interval {change_range_text(self.low, self.high)}"

    @property
    def size(self) -> float:
        """How large it is, either way: 0 for no change."""
        return abs(log(self.ratio))

    @property
    def is_clear(self) -> bool:
        """Tells whether the interval holds only one direction."""
        return self.low > 1 or self.high < 1


def change_between(one: HasTime, other: HasTime) -> StepTimeChange:
    """From one to the other, both timed.

    Errors of their steps are taken as independent; what the cost model added to both is wrong in
    one direction for both.
    """
    change = change_of(one.spread, other.spread)
    mine, theirs = _of_model(one), _of_model(other)
    shifts = (0.0, theirs[0] - mine[0], theirs[1] - mine[1])
    return StepTimeChange(
        ratio=change.ratio,
        low=change.low * exp(min(shifts)),
        high=change.high * exp(max(shifts)),
    )


def change_of(one: Quantity, other: Quantity) -> StepTimeChange:
    """From one known step time to another, errors independent.

    The interval of a difference is made of those of its terms, here of the logarithms (Zou and
    Donner, Statistics in Medicine 27, 2008).
    """
    first, second = logs(one), logs(other)
    middle = second[0] - first[0]
    return StepTimeChange(
        ratio=exp(middle),
        low=exp(middle - hypot(second[0] - second[1], first[2] - first[0])),
        high=exp(middle + hypot(second[2] - second[0], first[0] - first[1])),
    )


def _of_model(finding: HasTime) -> tuple[float, float]:
    """How far the cost model's part may move a step time, down (negative) and up, in logarithms."""
    whole, timed = logs(finding.step_time), logs(finding.spread)
    return min(whole[1] - timed[1], 0.0), max(whole[2] - timed[2], 0.0)


Array = NDArray[np.float64]

# Part by which times differ that are worth looking at together: several times what runs differ by,
# so that it is hardly luck who is among them. What is apart may be anywhere as near as that.
REACH = 0.2
# Scale of the spread of true times: half of all spreads are believed to be less.
USUAL = 0.03
# Spreads that are summed over, evenly in logarithms.
SPREADS = np.geomspace(0.0005, 0.3, 16)
# Sizes of luck that are summed over: logarithms of the ratio to the best estimate, in standard
# deviations of that logarithm, which are about ``1 / sqrt(2 freedom)``.
LUCKS = np.linspace(-2.5, 4.5, 16)
# Weight of a case, of all cases, below which it is left out.
NEGLIGIBLE = 1e-4
# Of the range in which a quantile is looked for.
HALVINGS = 22


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
        """Weighs all being together; and each being apart from the others, without spread."""
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
    """Finds a quantile of normal distributions with weights, means and standard deviations."""
    low = min(mean - 4 * error for _, mean, error in mixture)
    high = max(mean + 4 * error for _, mean, error in mixture)
    below = part * sum(weight for weight, _, _ in mixture)
    scaled = [(weight / 2, mean, error * sqrt(2)) for weight, mean, error in mixture]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        mass = sum([half * (1 + erf((middle - mean) / scale)) for half, mean, scale in scaled])
        low, high = (middle, high) if mass < below else (low, middle)
    return (low + high) / 2
