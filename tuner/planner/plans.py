"""What a planner may decide beside another probe."""

from dataclasses import dataclass

TRAINS_WRONGLY = "what fits trains something else"
"""Reason of a stop where memory suffices for settings, and all of them are known to be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nothing more is to be probed on these terms."""

    reason: str
    """Why, for people."""
    nothing_fits: str = ""
    """What would be needed, when no settings fit; else empty."""
    wrong: str = ""
    """What is wrong, when all that fits trains something else; else empty."""

    @property
    def failure(self) -> str:
        """Why the study fails; empty where it is done."""
        why = self.nothing_fits or self.wrong
        return f"{self.reason}: {why}" if why else ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A probe is queued or running, and its result is needed first."""
