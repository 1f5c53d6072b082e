"""By how much runs of the same settings differ, beside what the spread of their steps shows.

All steps of a run share what it met (which nodes, links and temperatures), so one run cannot show
this variation. It is assumed before any repetition, and learned from repetitions: the runs' medians
are taken as log-normal, with a standard deviation of which :data:`ASSUMED` is believed as much as
one degree of freedom. That is the conjugate prior of an unknown variance, after which the mean of
``m`` runs follows Student's t (Gelman et al., Bayesian Data Analysis, 3rd ed., section 3.3).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, fsum, log, sqrt
from statistics import median

from tuner.core.configuration import Settings
from tuner.core.measurement import Measurement
from tuner.core.quantity import QUANTILE, UNKNOWN, Provenance, Quantity, weakest
from tuner.core.study import Question

# Standard deviation of the logarithm of a run's time, worth one repetition that was seen.
#
# One run alone then has an interval of 3% to each side: differences of 2 to 3% are usually within
# the noise of one short probe, and take repetitions to be told.
ASSUMED = 0.01

# The 90% quantiles of Student's t with 1, 2, 3 and 4 degrees of freedom.
STUDENT = (3.0777, 1.8856, 1.6377, 1.5332)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVariation:
    """Run-to-run variation after some repetitions, which may be of several configurations."""

    squares: float = ASSUMED**2
    """Sum of the squares of what runs' logarithms differed by from their settings' mean."""
    freedom: int = 1  # degrees of freedom of that sum

    @property
    def variance(self) -> float:
        """Variance of the logarithm of one run's time, by the best estimate."""
        return self.squares / self.freedom

    def half_width(self, runs: int) -> float:
        """Half of the 80% interval of the mean of ``runs``, of the logarithm of their time."""
        if self.freedom <= len(STUDENT):
            student = STUDENT[self.freedom - 1]
        else:  # beyond the table by the expansion of Cornish and Fisher
            z, freedom = QUANTILE, self.freedom
            first = (z**3 + z) / (4 * freedom)
            student = z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        return student * sqrt(self.variance / runs)


def seen_variation(probes: Iterable[Iterable[Measurement]]) -> RunVariation:
    """The variation of a machine, after the repetitions of some settings on it."""
    logs = [found for measurements in probes if len(found := _repeated(measurements)) > 1]
    means = [fsum(found) / len(found) for found in logs]
    squares = [(x - mean) ** 2 for found, mean in zip(logs, means, strict=True) for x in found]
    return RunVariation(
        squares=fsum((ASSUMED**2, *squares)), freedom=1 + sum(len(found) - 1 for found in logs)
    )


def _repeated(measurements: Iterable[Measurement]) -> Sequence[float]:
    """Logarithms of the medians of the runs that timed the longest step repeated."""
    runs = [m.step_times_s for m in measurements]
    if len(runs) < 2:
        return ()
    counts = {count for run in runs for count, steps in run.items() if steps}
    timed = {n: [log(median(run[n])) for run in runs if run.get(n)] for n in counts}
    repeated = [n for n, found in timed.items() if len(found) > 1]
    return timed[max(repeated)] if repeated else ()


# Of every interval.
CONFIDENCE = 0.8

# Part of the range by which the interval exceeds the range on each side, by number of steps.
#
# Those of Student's t at 80%: 1.54 ranges to each side of the mean for 2 steps, and about 0.6 for
# 3, rounded up. With four steps the range itself carries 87%.
WIDENED_BY = {2: 1.0, 3: 0.25}

# Relative half width for one timed step, of which no spread is known.
SINGLE_STEP = 0.25

# Lower end of any interval, at least, in shortest steps timed.
LEAST = 0.5

# Micro-batches per optimizer step up to which a probe runs all of them.
LONGEST_RUN_OUT = 8

# Counts that stand for longer ones: the step's time is linear in the count.
SHORT_COUNTS = (2, 4)


@dataclass(frozen=True, slots=True)
class _Interval:
    value: float
    low: float
    high: float


def step_time(
    measurements: Iterable[Measurement],
    accumulation: int,
    *,
    with_model: bool = True,
    variation: RunVariation | None = None,
) -> Quantity:
    """Seconds of one optimizer step, pooled over the repetitions of one probe.

    What was emulated has communication from the cost model: its interval widens that of the
    steps.

    Args:
        measurements: of the same settings; those that did not end well count for nothing.
        accumulation: micro-batches in the step that is asked for.
        with_model: off for the interval of the timed steps alone. What the model is wrong by moves
            all settings together, and tells none apart.
        variation: what runs on this machine differ by; by default what these measurements show.

    Returns:
        From the steps that ran so many micro-batches, when there are any. Else the line
        through the two counts that were run, with its interval (:func:`is_extrapolated`);
        its provenance is ``predicted``. Unknown when neither is there.
    """
    timed = [m for m in measurements if m.step_times_s]
    runs = tuple(tuple(m.step_times_s.items()) for m in timed)
    steps, counted = _of_steps(runs, accumulation)
    if steps is None:
        return UNKNOWN
    # With the variation of runs, in quadrature.
    half = (variation or seen_variation([timed])).half_width(counted)
    low = steps.value * exp(-sqrt(log(steps.value / steps.low) ** 2 + half**2))
    high = steps.value * exp(sqrt(log(steps.high / steps.value) ** 2 + half**2))
    # Of steps shorter than those asked for it is arithmetic.
    provenance = Provenance.PREDICTED
    if not is_extrapolated(timed, accumulation):
        emulations = [m.emulation for m in timed]
        provenance = weakest(
            Provenance.MEASURED
            if emulation is None
            else Provenance.PREDICTED
            if emulation.stands_in
            else Provenance.EMULATED
            for emulation in emulations
        )
    # Seconds by which priced communication may be wrong; the largest of all.
    down = up = 0.0
    exposures = [m.emulation.exposed_s for m in timed if m.emulation and m.emulation.exposed_s]
    for exposed in exposures if with_model else ():
        count = accumulation if accumulation in exposed else max(exposed)
        share, one = accumulation / count, exposed[count]
        down = max(down, share * (one.value_s - one.low_s))
        up = max(up, share * (one.high_s - one.value_s))
    low, high = max(low - down, LEAST * low), high + up
    return Quantity(value=steps.value, low=low, high=high, provenance=provenance)


# A study is planned, answered and shown after every probe, and what others timed stays the same.
@lru_cache(maxsize=4096)
def _of_steps(
    runs: tuple[tuple[tuple[int, tuple[float, ...]], ...], ...], accumulation: int
) -> tuple[_Interval | None, int]:
    """A step's time from those that were timed, by count, of one or more runs, without what these
    differ by, and how many of them tell it; ``None`` where they do not."""
    timed = [dict(run) for run in runs]
    low, ran = _counts_of(timed, accumulation)
    found = _pooled([run[ran] for run in timed if run.get(ran)])
    if ran != accumulation:
        if found is None or low == ran or ran > accumulation:
            return None, 0
        short = _pooled([run[low] for run in timed if run.get(low)])
        found = _line((low, short), (ran, found), accumulation)
    return found, sum(bool(run.get(ran)) for run in timed)


def runs_timed(measurements: Iterable[Measurement], accumulation: int) -> int:
    """How many runs stand behind the time of a step of ``accumulation`` micro-batches.

    Those that ran so many; where none did, those that ran the longest step of the others.
    """
    runs = [m.step_times_s for m in measurements]
    _, ran = _counts_of(runs, accumulation)
    return sum(bool(run.get(ran)) for run in runs)


def _counts_of(runs: Iterable[Mapping[int, Sequence[float]]], accumulation: int) -> tuple[int, int]:
    """The smallest count that was timed, and the one that tells most of the count asked for: itself
    or the largest; 0 where there is none."""
    counts = {count for run in runs for count, steps in run.items() if steps}
    largest = accumulation if accumulation in counts else max(counts, default=0)
    return min(counts, default=0), largest


def speed_of(step_time: Quantity, question: Question) -> Quantity:
    """Tokens per second and GPU; the longest step makes the lowest speed."""
    return step_time.under(question.workload.tokens_per_step / question.cluster.world_size)


def logs(quantity: Quantity) -> tuple[float, float, float]:
    """Logarithms of value, low and high of a quantity that is known, and positive."""
    assert quantity.value
    assert quantity.low
    assert quantity.high
    return log(quantity.value), log(quantity.low), log(quantity.high)


def is_extrapolated(measurements: Iterable[Measurement], accumulation: int) -> bool:
    """Tells whether no step ran that many micro-batches, so that the time comes from fewer."""
    return not any(m.step_times_s.get(accumulation) for m in measurements)


def counts_to_run(accumulation: int) -> tuple[int, ...]:
    """Chooses the counts that a first probe runs instead of ``accumulation`` micro-batches; empty:
    all of them."""
    return SHORT_COUNTS if accumulation > LONGEST_RUN_OUT else ()


def first_counts(question: Question, settings: Settings) -> tuple[int, ...]:
    """The counts of a first probe; a user's script is run as it is."""
    count = settings.gradient_accumulation_steps
    return counts_to_run(count) if question.script is None else ()


def alike(one: Quantity, other: Quantity) -> bool:
    """Tells whether each of two known values lies in the other's interval.

    That intervals overlap says less: two 80% intervals may overlap though the difference of
    their values is certain (Schenker and Gentleman, The American Statistician 55, 2001).
    """
    pairs = ((one, other.value), (other, one.value))
    return all((q.low or 0.0) <= (value or 0.0) <= (q.high or 0.0) for q, value in pairs)


def _pooled(runs: Sequence[tuple[float, ...]]) -> _Interval | None:
    """The median of the runs' medians, with the interval of what their steps vary by."""
    if not runs:
        return None
    each = [(median(run), *_median_interval(sorted(run))) for run in runs]
    value = median(middle for middle, _, _ in each)
    # The standard error of the mean of values with independent errors, in parts of each.
    down, up = (
        sqrt(fsum(error**2 for error in errors)) / len(errors)
        for errors in (
            [1 - low / middle for middle, low, _ in each],
            [high / middle - 1 for middle, _, high in each],
        )
    )
    return _Interval(value, value * (1 - down), value * (1 + up))


def _median_interval(steps: Sequence[float]) -> tuple[float, float]:
    """Order statistics that carry ``CONFIDENCE``, or the points between them; ``steps`` ascend."""
    n = len(steps)
    if n == 1:
        return steps[0] * (1 - SINGLE_STEP), steps[0] * (1 + SINGLE_STEP)
    extra = WIDENED_BY.get(n, 0.0) * (steps[-1] - steps[0])
    if extra or steps[0] == steps[-1]:
        return max(steps[0] - extra, LEAST * steps[0]), steps[-1] + extra
    inner, carried, less = 0, 1.0, 1 - 2 / 2**n
    while less >= CONFIDENCE:
        inner, carried = inner + 1, less
        less = carried - 2 * comb(n, inner) / 2**n
    # The pair cut at `inner` carries too little now, the one before it enough.
    share = (carried - CONFIDENCE) / (carried - less)
    part = (n - inner) * share / (inner + (n - 2 * inner) * share)
    low = steps[inner - 1] + part * (steps[inner] - steps[inner - 1])
    return low, steps[n - inner] - part * (steps[n - inner] - steps[n - 1 - inner])


def _line(
    first: tuple[int, _Interval | None], second: tuple[int, _Interval | None], count: int
) -> _Interval:
    """Extrapolate to ``count``; errors of the two points are taken as independent.

    A step of more micro-batches takes at least as long as the longest that was run, and at
    most in proportion, because the rest of a step (the optimizer) takes some time too.
    """
    (few, short), (many, long) = first, second
    assert short is not None
    assert long is not None
    lever = (count - many) / (many - few)
    value = long.value + lever * (long.value - short.value)
    down = sqrt(
        ((1 + lever) * (long.value - long.low)) ** 2 + (lever * (short.high - short.value)) ** 2
    )
    up = sqrt(
        ((1 + lever) * (long.high - long.value)) ** 2 + (lever * (short.value - short.low)) ** 2
    )
    in_proportion = count / many
    value = min(max(value, long.value), long.value * in_proportion)
    return _Interval(
        value,
        min(max(value - down, long.low), value),
        max(min(value + up, long.high * in_proportion), value),
    )
