"""How much longer one settings' step takes than another's, with an interval."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, hypot, log
from typing import Protocol

from tuner.identity_keys import Same
from tuner.measurement import Outcome
from tuner.planner.contenders import fair
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.timing import logs
from tuner.planner.words import change_range_text, change_text, probes_text
from tuner.quantity import Quantity
from tuner.settings import Settings


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
    """As :func:`timed_settings`, with intervals for comparing what was chosen for its speed."""
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
class Change:
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
        """Whether the interval holds only one direction."""
        return self.low > 1 or self.high < 1


def change_between(one: HasTime, other: HasTime) -> Change:
    """From one to the other, both timed.

    Errors of their steps are taken as independent; what the cost model added to both is wrong in
    one direction for both.
    """
    change = change_of(one.spread, other.spread)
    mine, theirs = _of_model(one), _of_model(other)
    shifts = (0.0, theirs[0] - mine[0], theirs[1] - mine[1])
    return Change(
        ratio=change.ratio,
        low=change.low * exp(min(shifts)),
        high=change.high * exp(max(shifts)),
    )


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


def _of_model(finding: HasTime) -> tuple[float, float]:
    """How far the cost model's part may move a step time, down (negative) and up, in logarithms."""
    whole, timed = logs(finding.step_time), logs(finding.spread)
    return min(whole[1] - timed[1], 0.0), max(whole[2] - timed[2], 0.0)
