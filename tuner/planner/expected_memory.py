"""Expects the memory of configurations that were not probed, from arithmetic and from probes."""

from functools import cached_property, lru_cache
from statistics import median_low

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import RAN, TRAINS_WRONGLY
from tuner.core.words import describe
from tuner.core.workload import Workload
from tuner.cost.memory.step import MemoryBound, memory_bound
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.text import size_text


class MemoryOutlook:
    """The memory estimate, corrected by what a study's probes have needed."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self._workload = known.study.question.workload
        self._cluster = known.study.question.cluster
        self._bounds = _bounds(self._workload, self._cluster)

    def expected_bytes(self, settings: Settings) -> float:
        """The estimate, scaled by the class's probes, or else by what is typical so far."""
        factor = self._factors.get(settings.settings_class, self._typical_factor)
        return factor * self._total(settings)

    def floor_bytes(self, settings: Settings) -> int:
        """Least memory that the configuration needs, by arithmetic."""
        return self._bound(settings).floor_bytes

    def cannot_fit(self, settings: Settings) -> bool:
        """Tells whether arithmetic alone says so; of a user's script it says nothing."""
        if self._known.study.question.script is not None:
            return False
        return self.floor_bytes(settings) > self._known.limit_bytes

    def smallest_need(self) -> str:
        """The least memory that settings which do not fit are known to need; empty if none."""
        seen = self._known.too_large.values()
        least = min(seen, key=lambda need: (need.bytes, need.probe_id), default=None)
        if least is None:
            return ""
        more = "at least " if least.at_least else ""
        return (
            f"the smallest need known is {more}{size_text(least.bytes)} on one device, of"
            f" {describe(least.settings)} (probe #{least.probe_id}); the limit is"
            f" {size_text(self._known.limit_bytes)}"
        )

    def what_is_wrong(self) -> str:
        """Why settings that fit are no answer: those that were tried, or else, where nothing is
        left to be tried, those that are expected to fit; empty where no such are known."""
        known = self._known
        steps_done = RAN | TRAINS_WRONGLY
        ran = {p.request.settings for p in known.study.probes if outcome_of(p) in steps_done}
        wrong = [one for one in known.wrong if one not in known.infeasible]
        found = [one for one in wrong if one in ran]
        if not found and not known.candidates():
            found = [one for one in wrong if self._is_expected_to_fit(one)]
        return "; ".join(dict.fromkeys(known.wrong[one].why for one in found))

    def _is_expected_to_fit(self, settings: Settings) -> bool:
        is_script = self._known.study.question.script is not None
        return is_script or self.expected_bytes(settings) <= self._known.limit_bytes

    @cached_property
    def needed(self) -> dict[Settings, int]:
        """Bytes that legal settings were seen to need; of those out of memory, at least."""
        ran_out = {s: need.bytes for s, need in self._known.too_large.items()}
        measured = {s: f.needed_bytes for s, f in self._known.findings.items()}
        legal = frozenset(self._known.space.legal)
        return {s: n for s, n in {**ran_out, **measured}.items() if s in legal}

    @cached_property
    def _factors(self) -> dict[Settings, float]:
        """Needed over estimated, by class; the largest seen."""
        found: dict[Settings, float] = {}
        for settings, needed in self.needed.items():
            key, ratio = settings.settings_class, needed / max(self._total(settings), 1)
            found[key] = max(ratio, found.get(key, 0.0))
        return found

    @cached_property
    def _typical_factor(self) -> float:
        return median_low(self._factors.values()) if self._factors else 1.0

    def _total(self, settings: Settings) -> int:
        return self._bound(settings).total_bytes

    def _bound(self, settings: Settings) -> MemoryBound:
        if settings not in self._bounds:
            self._bounds[settings] = memory_bound(self._workload, settings, self._cluster)
        return self._bounds[settings]


# A study is planned again after every probe, and its arithmetic is the same.
@lru_cache(maxsize=8)
def _bounds(workload: Workload, cluster: Cluster) -> dict[Settings, MemoryBound]:
    """Returns the bounds of a workload on a cluster, empty at first."""
    return {}
