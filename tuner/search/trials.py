"""What was tried: in this search, and in earlier ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from tuner.search.features import Array, Rows


class Result(Enum):
    """How a trial ended, as far as a search needs to know."""

    RAN = "ran"  # its steps were done, whether it fits the limit or not
    TOO_LARGE = "too_large"  # out of memory
    SLOW = "slow"  # its steps ran, and it was ended before all were done
    TIMED_OUT = "timed_out"  # its time was up, and none of its steps are known to have run
    FAILED = "failed"  # it did not run, and nobody knows whether for want of memory
    REFUSED = "refused"  # it does not run, whatever the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was tried."""

    index: int
    """Which candidate."""
    result: Result
    """How it ended."""
    seconds: float | None = None
    """Of an optimizer step where it ran; where it was slow or timed out, at least so many."""
    error: float = 0.0
    """Standard deviation of the logarithm of ``seconds``."""
    need_bytes: float | None = None
    """That one device needed; where it was too large, at least so many."""
    indirect: bool = False
    """Whether it was run in another way than those of this search, so that it is no answer to it,
    and its time has an error that all such trials share."""
    is_wrong: bool = False
    """Whether it trains something else, so that it is no answer: its time tells of others'."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """``p`` trials of earlier searches for the same stack on the same kind of cluster."""

    study: Array
    """Shape ``(p,)``: which search each belongs to, as a number."""
    features: Array
    """Shape ``(p, d)``: their settings'."""
    workload: Array
    """Shape ``(p, w)``: their searches'."""
    log_excess: Array
    """Shape ``(p,)``: logarithm of seconds over those predicted for them; ``nan`` if not timed."""
    ran: Array
    """Shape ``(p,)``: 1 where the steps were done, 0 where not."""
    expected: Array
    """Shape ``(p,)``: the probability of that as it was predicted."""

    @property
    def size(self) -> int:
        """How many."""
        return len(self.study)

    def take(self, rows: Rows) -> "Past":
        """Some of them, by index."""
        return Past(**{name: getattr(self, name)[rows] for name in self.__slots__})


def joined(parts: Sequence[Past]) -> Past | None:
    """Several pasts as one; ``None`` where there is none."""
    if not parts:
        return None
    names = Past.__slots__
    return Past(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})
