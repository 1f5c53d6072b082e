"""Step times that the fastest was chosen from, with intervals that hold for what was chosen.

Values stay what was measured; only the ends of intervals move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, hypot, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import QUANTILE, Change, Quantity
from tuner.planner.knowledge import Knowledge, measurements_of
from tuner.planner.ranking import indistinguishable
from tuner.planner.timing import RunVariation, logs, runs_timed, seen_variation, speed_of
from tuner.text import kept


# The facts of one answer, and its figures, ask for the same again.
@kept(maxsize=8)
def fair(known: Knowledge) -> Mapping[Settings, Evaluation]:
    """All that fits, contenders with intervals that hold whichever of them is the answer.

    Contenders are those that the fastest cannot be told apart from, or that are nearly as fast.
    One that has none beside it keeps its own interval.
    """
    fitting = known.fitting
    found = {finding.settings: finding for finding in fitting}
    contenders = [f for f in fitting if indistinguishable(fitting[0], f, REACH)]
    if len(contenders) < 2:
        return found
    variation = seen_variation(measurements_of(f.probes) for f in known.findings.values())
    seen = []
    for one in contenders:
        value, low, high = logs(one.spread_s)
        count = one.settings.gradient_accumulation_steps
        runs = runs_timed(measurements_of(one.probes), count)
        whole = ((value - low) ** 2 + (high - value) ** 2) / 2
        steps = max(whole - variation.half_width(runs) ** 2, 0.0) / QUANTILE**2
        seen.append(Seen(value=value, runs=runs, steps=steps))
    for one, (low, high) in zip(contenders, joint_ends(tuple(seen), variation), strict=True):
        # What the cost model adds is kept.
        whole_s, timed = logs(one.step_time_s), logs(one.spread_s)
        time = _with_ends(
            one.step_time_s, low + whole_s[1] - timed[1], high + whole_s[2] - timed[2]
        )
        found[one.settings] = replace(
            one,
            step_time_s=time,
            spread_s=_with_ends(one.spread_s, low, high),
            tokens_per_s_per_gpu=speed_of(time, known.study.question),
        )
    return found


def _with_ends(quantity: Quantity, low: float, high: float) -> Quantity:
    """The interval, made to hold the value: an answer's own time is never told to be impossible."""
    value = quantity.value
    assert value is not None
    return replace(quantity, low=min(exp(low), value), high=max(exp(high), value))


@kept(maxsize=8)
def timed(known: Knowledge) -> Mapping[Settings, Evaluation]:
    """All legal configurations of which steps were timed, fitting or not, in the space's order."""
    places, found = known.space.places, {**known.slow, **known.findings}
    legal = sorted((one for one in found if one in places), key=places.__getitem__)
    return {one: found[one] for one in legal if found[one].step_time_s.value is not None}


def compared(known: Knowledge) -> dict[Settings, Evaluation]:
    """The same, with intervals for comparing what was chosen for its speed."""
    return {**timed(known), **fair(known)}


def change_between(one: Evaluation, other: Evaluation) -> Change:
    """From one to the other, both timed.

    Errors of their steps are taken as independent; what the cost model added to both is wrong in
    one direction for both.
    """
    change = change_of(one.spread_s, other.spread_s)
    mine, theirs = _of_model(one), _of_model(other)
    shifts = (0.0, theirs[0] - mine[0], theirs[1] - mine[1])
    low, high = change.low * exp(min(shifts)), change.high * exp(max(shifts))
    return replace(change, low=low, high=high)


def change_of(one: Quantity, other: Quantity) -> Change:
    """From one known step time to another, errors independent.

    The interval of a difference is made of those of its terms, here of the logarithms (Zou and
    Donner, Statistics in Medicine 27, 2008).
    """
    first, second = logs(one), logs(other)
    middle = second[0] - first[0]
    return Change(
        ratio=exp(middle),
        low=exp(middle - hypot(second[0] - second[1], first[2] - first[0])),
        high=exp(middle + hypot(second[2] - second[0], first[0] - first[1])),
    )


def _of_model(one: Evaluation) -> tuple[float, float]:
    """How far the cost model's part may move a step time, down (negative) and up, in logarithms."""
    whole, steps = logs(one.step_time_s), logs(one.spread_s)
    return min(whole[1] - steps[1], 0.0), max(whole[2] - steps[2], 0.0)


Array = NDArray[np.float64]

# Part by which times differ that are worth looking at together: several times what runs differ by,
# so that it is hardly variation who is among them. What is apart may be anywhere as near as that.
REACH = 0.2
# Scale of the spread of true times: half of all spreads are believed to be less.
USUAL = 0.03
# Spreads that are summed over, evenly in logarithms.
SPREADS = np.geomspace(0.0005, 0.3, 16)
# Sizes of variation that are summed over: logarithms of the ratio to the best estimate, in standard
# deviations of that logarithm, which are about ``1 / sqrt(2 freedom)``.
VARIATIONS = np.linspace(-2.5, 4.5, 16)
# Weight of a case, of all cases, below which it is left out.
NEGLIGIBLE = 1e-4
# Mass by which a quantile may be off, and the most steps that it is looked for in.
EXACT, MOST_STEPS = 1e-7, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One contender's time as it was seen."""

    value: float  # the logarithm of the seconds measured
    runs: int  # runs that it is the middle of; variation is of a run
    steps: float  # variance of the logarithm's error that the spread of the steps shows


def joint_ends(
    contenders: tuple[Seen, ...], variation: RunVariation
) -> tuple[tuple[float, float], ...]:
    """Ends of the 80% intervals of the logarithms of two or more contenders' times.

    They are under every size of variation and every spread of their true times: arrays have the
    axes variation, spread, contender, as far as they differ along them. An interval need not hold
    the value that was measured: who is far ahead of the others by chance is believed to be slower.
    """
    values = np.array([one.value for one in contenders])
    center, count = float(values.mean()), len(contenders)
    values = values - center
    variations = sqrt(variation.variance) * np.exp(VARIATIONS / sqrt(2 * variation.freedom))
    runs = np.array([one.runs for one in contenders])
    steps = np.array([one.steps for one in contenders])
    errors = variations[:, None] ** 2 / runs + steps
    each = 1 / (errors[:, None, :] + SPREADS[:, None] ** 2)  # precisions
    precision = each.sum(-1)
    mean = (each * values).sum(-1) / precision
    squares = variation.squares / (2 * variations**2)
    of_variation = -variation.freedom * np.log(variations) - squares
    prior = of_variation[:, None] + np.log(SPREADS / (1 + (SPREADS / USUAL) ** 2))
    # weights of all being together; and of each being apart from the others, without spread
    terms = np.stack([np.log(each), each, each * values, each * values**2])
    sums = terms.sum(-1)
    together = prior + _log_evidence(sums, count) + log(1 - 1 / count)
    others = prior[..., None] + _log_evidence(sums[..., None] - terms, count - 1)
    apart = np.logaddexp.reduce(others, axis=1) - log(count) - log(2 * REACH)

    def ends_of(place: int) -> tuple[float, float]:
        value, error = values[place], errors[:, place]
        pull = error[:, None] * each[..., place]
        means = (1 - pull) * value + pull * mean
        variances = (1 - pull) * error[:, None] + pull**2 / precision
        weights = np.concatenate([together.ravel(), apart[:, place]])
        weights = np.exp(weights - weights.max())
        found = zip(
            weights / weights.sum(),
            np.concatenate([means.ravel(), np.full(len(error), value)]),
            np.sqrt(np.concatenate([variances.ravel(), error])),
            strict=True,
        )
        mixture = [tuple(map(float, case)) for case in found if case[0] > NEGLIGIBLE]
        return center + _quantile(0.1, mixture), center + _quantile(0.9, mixture)

    return tuple(ends_of(place) for place in range(count))


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
    """Finds a quantile of normal distributions with weights, means and standard deviations.

    By false position with Illinois' rule (Dowell and Jarratt, 1971), which takes a third of the
    steps of halving: each counts hundreds of distributions.
    """
    low = min(mean - 4 * error for _, mean, error in mixture)
    high = max(mean + 4 * error for _, mean, error in mixture)
    whole = sum(weight for weight, _, _ in mixture)
    scaled = [(weight / 2, mean, error * sqrt(2)) for weight, mean, error in mixture]
    below, above = -part * whole, (1 - part) * whole
    middle, side = low, 0
    for _ in range(MOST_STEPS):
        middle = (low * above - high * below) / (above - below)
        mass = sum([half * (1 + erf((middle - mean) / scale)) for half, mean, scale in scaled])
        off = mass - part * whole
        if abs(off) < EXACT:
            break
        if off < 0:
            low, below = middle, off
            above /= 2 if side < 0 else 1
        else:
            high, above = middle, off
            below /= 2 if side > 0 else 1
        side = -1 if off < 0 else 1
    return middle
