"""What charts are drawn from: numbers and words, already chosen, not yet placed."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from tuner.quantity import Provenance, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A finite number and how far it may be off; both ends equal it where nobody knows."""

    value: float
    """The best estimate, in the unit of the axis that it is drawn on."""
    low: float
    """Lower end of the 80% interval, in the same unit."""
    high: float
    """Upper end of the 80% interval, in the same unit."""

    def __post_init__(self) -> None:
        ends = (self.low, self.value, self.high)
        assert all(map(isfinite, ends)), ends
        assert self.low <= self.value <= self.high, ends

    @classmethod
    def of(cls, quantity: Quantity) -> "Interval | None":
        """A quantity's numbers; ``None`` where it is unknown or not finite."""
        value, low, high = quantity.value, quantity.low, quantity.high
        if value is None or low is None or high is None:
            return None
        if not all(map(isfinite, (value, low, high))):
            return None
        return cls(value=value, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One category of a memory bar."""

    name: str
    """Its words in the legend, as ``optimizer state``."""
    value: float
    """Its size in the bar's unit; parts of 0 or less are left out."""
    tone: int = 0
    """Which of the nine colours it has, from 1, so that a category looks the same in every bar;
    0: by its position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Memory of one device by category, against its limit."""

    label: str
    """What the bar shows, as ``Peak memory of a GPU``."""
    unit: str
    """The unit of all its numbers, as ``GiB``."""
    limit: float
    """Where the limit lies, in ``unit``; above 0."""
    limit_label: str
    """Words at the limit's line, as ``limit 76.0 GiB``."""
    headroom: float
    """What lies between the limit and the device's capacity, in ``unit``; 0 if nothing does."""
    parts: tuple[Part, ...]
    """The categories, in the order in which they are stacked."""
    interval: Interval | None = None
    """The total's 80% interval, in ``unit``; drawn as a whisker where it is given."""


class MarkKind(StrEnum):
    """What is known of settings in the scatter."""

    FITS = "fits"  # within the limit
    OVER_LIMIT = "over_limit"  # it runs, but needs more than the limit
    OOM = "oom"  # the device was out of memory, or is known to be
    OTHER = "other"  # it ended otherwise: refused, crashed, timed out


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One settings in the scatter."""

    id: str
    """Unique among the marks; the element's id is ``{prefix}-{id}``."""
    href: str
    """Where a click leads: a path of this site or a fragment."""
    label: str
    """The settings in words."""
    x: Interval | None
    """Memory; unknown memory of an ``OOM`` is drawn at the right edge, others are only counted."""
    y: Interval | None
    """Speed; marks without it lie on a rail below the plot."""
    kind: MarkKind
    """Which side of the limit it is on, and whether it ran."""
    provenance: Provenance
    """What stands behind the numbers: it decides the shape."""
    on_front: bool
    """Whether nothing known is both faster and smaller."""
    is_best: bool
    """Whether it is the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One ended probe on the way to the answer."""

    number: int
    """The probe's number in its study, from 1."""
    value: float | None
    """Its speed in the axis's unit; ``None`` when it has none: a cross on the axis."""
    low: float | None
    """Lower end of the speed's 80% interval."""
    high: float | None
    """Upper end of the speed's 80% interval."""
    best: float | None
    """The fastest fitting one up to here, this one included; ``None`` before there is one."""
    outcome: str
    """How it ended, as a word."""
    label: str
    """The settings in words."""

    def __post_init__(self) -> None:
        known = [x for x in (self.value, self.low, self.high, self.best) if x is not None]
        assert all(map(isfinite, known)), known


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectValue:
    """The best known settings with one value of a knob."""

    value: str
    """The knob's value."""
    speed: Interval | None
    """Speed of those settings; ``None`` when unknown."""
    memory: float | None
    """Their memory; ``None`` when unknown."""
    is_best: bool
    """Whether the answer has this value."""
    note: str
    """What to add, or why there are no numbers, as ``out of memory``."""
    provenance: Provenance = Provenance.MEASURED
    """What stands behind the numbers: it decides the shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one knob does, all others chosen best."""

    knob: str
    """The knob's name."""
    values: tuple[EffectValue, ...]
    """Its values in order."""
