"""What a planner may decide beside another probe."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nothing more is to be probed on these terms."""

    reason: str
    """Why, for people."""
    nothing_fits: str = ""
    """What would be needed, when no settings fit; else empty."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A probe is queued or running, and its result is needed first."""
