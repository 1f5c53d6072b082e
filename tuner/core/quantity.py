"""A number of an answer: value, interval and where it comes from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import log

from tuner.serialization import Plain

# Standard deviations from the middle of a normal distribution to each end of an 80% interval.
QUANTILE = 1.2816


class Provenance(StrEnum):
    """Origins of a number, strongest first."""

    MEASURED = "measured"  # run on the cluster itself, all ranks
    EMULATED = "emulated"  # run on one device of the cluster's kind as rank 0
    REHEARSED = "rehearsed"  # counted by torch's CUDA allocator over rank 0's steps, on no GPU
    TRANSFERRED = "transferred"  # from measurements of other studies
    PREDICTED = "predicted"  # arithmetic or a dry run
    UNKNOWN = "unknown"  # nothing stands behind it


_ORDER = tuple(Provenance)


def weakest(provenances: Iterable[Provenance]) -> Provenance:
    """The weakest of several; ``unknown`` of none."""
    return max(provenances, key=_ORDER.index, default=Provenance.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Plain):
    """A number with its 80% interval; all three are ``None`` when it is unknown."""

    value: float | None  # the best estimate, in the unit that the field's name says
    low: float | None  # lower end of the 80% interval
    high: float | None  # upper end of the 80% interval
    provenance: Provenance  # what stands behind it

    def __post_init__(self) -> None:
        known = [x is not None for x in (self.value, self.low, self.high)]
        assert all(known) or not any(known), "a quantity is known or not, as a whole"
        if self.value is not None and self.low is not None and self.high is not None:
            assert self.low <= self.value <= self.high, (self.low, self.value, self.high)

    def scaled(self, factor: float) -> "Quantity":
        """The same quantity in another unit; ``factor`` is positive."""
        return self.changed(lambda end: end * factor)

    def changed(self, change: Callable[[float], float]) -> "Quantity":
        """The same with a change of all three that keeps their order."""
        if self.value is None or self.low is None or self.high is None:
            return self
        value, low, high = change(self.value), change(self.low), change(self.high)
        return Quantity(value=value, low=low, high=high, provenance=self.provenance)

    def under(self, numerator: float) -> "Quantity":
        """A number over this one, such as the speed of a time; unknown where this is, or 0."""
        if not self.value or not self.low or not self.high:
            return UNKNOWN
        return Quantity(
            value=numerator / self.value,
            low=numerator / self.high,
            high=numerator / self.low,
            provenance=self.provenance,
        )


def predicted(value: float, low: float, high: float) -> Quantity:
    """A number that arithmetic or a dry run gives."""
    return Quantity(value=value, low=low, high=high, provenance=Provenance.PREDICTED)


UNKNOWN = Quantity(value=None, low=None, high=None, provenance=Provenance.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A ratio of two step times, the other's over the first one's, with its 80% interval."""

    ratio: float
    low: float
    high: float

    @property
    def size(self) -> float:
        """How large it is, either way: 0 for no change."""
        return abs(log(self.ratio))

    @property
    def is_clear(self) -> bool:
        """True where the interval holds only one direction."""
        return self.low > 1 or self.high < 1
