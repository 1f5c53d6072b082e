"""By how much runs of the same settings differ, beside what the spread of their steps shows.

All steps of a run share its luck (which nodes, links and temperatures it met), so one run cannot
show it. It is assumed before any repetition, and learned from repetitions: the runs' medians are
taken as log-normal, with a standard deviation of which :data:`ASSUMED` is believed as much as one
degree of freedom. That is the conjugate prior of an unknown variance, after which the mean of
``m`` runs follows Student's t (Gelman et al., Bayesian Data Analysis, 3rd ed., section 3.3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, log, sqrt
from statistics import median

from tuner.measurement import Measurement
from tuner.quantity import QUANTILE

ASSUMED = 0.01
"""Standard deviation of the logarithm of a run's time, worth one repetition that was seen.

One run alone then has an interval of 3% to each side: differences of 2 to 3% are usually within
the noise of one short probe, and take repetitions to be told.
"""

STUDENT = (3.0777, 1.8856, 1.6377, 1.5332)
"""The 90% quantiles of Student's t with 1, 2, 3 and 4 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """What is known of it after some repetitions, which may be of several settings."""

    squares: float = ASSUMED**2
    """Sum of the squares of what runs' logarithms differed by from their settings' mean."""
    freedom: int = 1
    """Degrees of freedom of that sum."""

    @property
    def variance(self) -> float:
        """Of the logarithm of one run's time, by the best estimate."""
        return self.squares / self.freedom

    def half_width(self, runs: int) -> float:
        """Half of the 80% interval of the mean of ``runs``, of the logarithm of their time."""
        return _student(self.freedom) * sqrt(self.variance / runs)


def seen_luck(probes: Iterable[Iterable[Measurement]]) -> Luck:
    """The luck of a machine, after the repetitions of some settings on it.

    Args:
        probes: for each settings, its measurements. The runs of the longest step that was
            repeated are compared; the steps of one run have the same luck.
    """
    logs = [found for measurements in probes if len(found := _repeated(measurements)) > 1]
    means = [fsum(found) / len(found) for found in logs]
    squares = [(x - mean) ** 2 for found, mean in zip(logs, means, strict=True) for x in found]
    return Luck(
        squares=fsum((ASSUMED**2, *squares)),
        freedom=1 + sum(len(found) - 1 for found in logs),
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


def _student(freedom: int) -> float:
    """Its 90% quantile; beyond the table by the expansion of Cornish and Fisher."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = QUANTILE
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
