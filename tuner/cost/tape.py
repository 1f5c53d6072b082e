"""Memory as it rises and falls through a step, with what it is for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner.cost.categories import Category, Phase

CATEGORIES = tuple(Category)
(
    PARAMETERS, GRADIENTS_SHARDED, GRADIENTS_UNSHARDED, OPTIMIZER_STATE, ACTIVATIONS,
    GATHERED_PARAMETERS, LOGITS_AND_LOSS, DDP_BUCKETS, TEMPORARIES,
) = range(len(CATEGORIES))  # fmt: skip

MICRO_BATCHES = (1, 2, 4, 16, 256)
"""Sizes at which the highest moment of each phase is looked for. Between them another moment may be
a little higher, where the highest of two neighbors cross."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held at one moment: a straight line in the micro-batch size."""

    phase: Phase
    """When."""
    fixed_bytes: tuple[float, ...]
    """Bytes by category whatever the micro-batch size."""
    sequence_bytes: tuple[float, ...]
    """Bytes by category for each sequence of the micro-batch."""
    fixed: float
    """Sum of ``fixed_bytes``."""
    per_sequence: float
    """Sum of ``sequence_bytes``."""

    def total(self, micro_batch_size: int) -> float:
        """All bytes."""
        return self.fixed + self.per_sequence * micro_batch_size

    def breakdown(self, micro_batch_size: int) -> Mapping[str, float]:
        """Bytes by category; those that hold nothing are left out."""
        pairs = zip(CATEGORIES, self.fixed_bytes, self.sequence_bytes, strict=True)
        held = {str(name): f + s * micro_batch_size for name, f, s in pairs}
        return {name: size for name, size in held.items() if size > 0.5}


class Tape:
    """Goes through a step, and remembers its highest moments."""

    def __init__(self) -> None:
        self.phase = Phase.FORWARD
        self._fixed = [0.0] * len(CATEGORIES)
        self._sequence = [0.0] * len(CATEGORIES)
        self._total, self._slope, self._rising = 0.0, 0.0, True
        self._best: dict[tuple[Phase, int], tuple[float, Moment]] = {}

    def fixed(self, category: int, size: float) -> None:
        """Bytes that do not depend on the micro-batch; negative where they are freed."""
        if size < 0:
            self.note()
        elif size:
            self._rising = True
        self._fixed[category] += size
        self._total += size

    def sequence(self, category: int, size: float) -> None:
        """Bytes for each sequence of the micro-batch."""
        if size < 0:
            self.note()
        elif size:
            self._rising = True
        self._sequence[category] += size
        self._slope += size

    def enter(self, phase: Phase) -> None:
        """Another phase begins; what is held now is in both."""
        self.note()
        self.phase, self._rising = phase, True
        self.note()

    def note(self) -> None:
        """Memory is about to fall: remember this moment if it is among the highest."""
        if not self._rising:
            return
        self._rising = False
        fixed, slope, best = self._total, self._slope, self._best
        moment = None
        for size in MICRO_BATCHES:
            total, key = fixed + slope * size, (self.phase, size)
            known = best.get(key)
            if known is None or total > known[0]:
                moment = moment or self._moment()
                best[key] = (total, moment)

    def moments(self) -> tuple[Moment, ...]:
        """The highest of each phase, each once."""
        self.note()
        return tuple(_distinct(moment for _, moment in self._best.values()))

    def _moment(self) -> Moment:
        return Moment(
            phase=self.phase,
            fixed_bytes=tuple(self._fixed),
            sequence_bytes=tuple(self._sequence),
            fixed=self._total,
            per_sequence=self._slope,
        )


def _distinct(moments: Iterator[Moment]) -> Iterator[Moment]:
    seen: set[int] = set()
    for moment in moments:
        if id(moment) not in seen:
            seen.add(id(moment))
            yield moment
