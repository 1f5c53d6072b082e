"""Says which knob mattered how much: by probes that differ in one knob, else by the model."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tuner.core.configuration import ACCUMULATION, KNOBS, OTHERS_CHOSEN, Settings
from tuner.core.words import MOST_NAMED, change_text, listed, probes_text, seconds_text
from tuner.planner.expected_speed import Effect, SpeedOutlook
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, Need
from tuner.planner.ranking import near
from tuner.planner.step_times import Timed, change_between, compared_settings, timed_settings
from tuner.planner.timing import alike
from tuner.space.inactive import show
from tuner.text import size_text

MICRO = "micro_batch_size"
# Knobs that are chosen; accumulation makes up the global batch.
CHOSEN = tuple(knob for knob in KNOBS if knob != ACCUMULATION)
# Knobs that are compared elsewhere, where the answer itself was in no such pair.
HEADLINE = ("sync_each_batch", "tp_recompute_allgather")

# Part by which step times may differ where nothing is said to have changed them: two runs of the
# same settings, each 2% off (as ``LEAST_ERROR`` of :mod:`tuner.search.belief`).
SAME = 0.03
# Part by which they must differ where a knob is said to be all that changed them.
CLEAR = 0.1


def knob_effects(known: Knowledge, best: Finding, outlook: SpeedOutlook) -> Iterator[str]:
    """One knob that was all that mattered; pairs of probes, the largest effect first; the rest."""
    only = only_knob(known)
    if only is not None:
        yield str(only)
    pairs = _Pairs(known)
    paired = {knob: pairs.nearest(best.settings, knob) for knob in CHOSEN}
    mine = pairs.timed[best.settings]
    found = [pairs.compared(mine, s, knob) for knob in CHOSEN for s in paired[knob]]
    yield from (text for _, text in sorted(found, key=lambda pair: (-pair[0], pair[1])))
    elsewhere = _elsewhere(pairs, best, [knob for knob in HEADLINE if not paired[knob]])
    yield from elsewhere.values()
    told = {only.knob, *only.without_effect, *only.confounded} if only else set[str]()
    told |= {knob for knob in CHOSEN if paired[knob]} | elsewhere.keys()
    rest = [knob for knob in CHOSEN if knob not in told and _is_live(known, best.settings, knob)]
    yield from _believed(known, best, outlook, rest, "other knobs" if told else "knobs")


# -- one knob only ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyKnob:
    """A knob whose value alone decided what the steps of all probes took."""

    knob: str
    """Which."""
    groups: Mapping[Any, Sequence[Timed]]
    """What was timed, by its value."""
    without_effect: tuple[str, ...]
    """Knobs that differ between findings of one value, and changed nothing."""
    confounded: tuple[str, ...] = ()
    """Knobs of which the same could be said: no probe tells them apart."""

    def __str__(self) -> str:
        groups = sorted(self.groups.items(), key=lambda group: _fastest(group[1]).seconds)
        values = "; ".join(_group_text(self.knob, value, group) for value, group in groups)
        which = " or ".join((self.knob, *self.confounded))
        return (
            f"Of what was probed, only {which} changed the speed: {values}. Those of the same"
            f" {self.knob} cannot be told apart, though they differ in"
            f" {listed(self.without_effect)}."
        )


def only_knob(known: Knowledge) -> OnlyKnob | None:
    """The one knob that mattered; ``None`` where several did, or probes cannot tell."""
    probed = list(timed_settings(known).values())
    found = [one for knob in CHOSEN if (one := _as_only(known, probed, knob)) is not None]
    if not found:
        return None
    first, *others = sorted(found, key=lambda one: -len(one.without_effect))
    names = tuple(one.knob for one in others)
    without = tuple(knob for knob in first.without_effect if knob not in names)
    return replace(first, without_effect=without, confounded=names) if without else None


def _as_only(known: Knowledge, probed: Sequence[Timed], knob: str) -> OnlyKnob | None:
    groups: dict[Any, list[Timed]] = defaultdict(list)
    for finding in probed:
        groups[getattr(finding.settings, knob)].append(finding)
    without = _differing_in(groups.values())
    tolerance = max(known.study.terms.tolerance, SAME)
    same = all(
        near(one, other, tolerance) or alike(one.spread, other.spread)
        for group in groups.values()
        for one, other in combinations(group, 2)
    )
    if not same or not without or not _apart(groups):
        return None
    return OnlyKnob(knob=knob, groups=groups, without_effect=without)


def _apart(groups: Mapping[Any, Sequence[Timed]]) -> bool:
    """Tells whether the values' speeds are far apart."""
    leaders = sorted((_fastest(group) for group in groups.values()), key=lambda f: f.seconds)
    first, last = leaders[0], leaders[-1]
    return last.seconds > (1 + CLEAR) * first.seconds and change_between(first, last).is_clear


def _differing_in(groups: Collection[Sequence[Timed]]) -> tuple[str, ...]:
    """Knobs that take several values within one group."""
    return tuple(
        knob
        for knob in CHOSEN
        if any(len({getattr(f.settings, knob) for f in group}) > 1 for group in groups)
    )


def _fastest(group: Sequence[Timed]) -> Timed:
    return min(group, key=lambda finding: finding.seconds)


def _group_text(knob: str, value: object, group: Sequence[Timed]) -> str:
    low, high = min(f.seconds for f in group), max(f.seconds for f in group)
    texts = " to ".join(dict.fromkeys((seconds_text(low), seconds_text(high))))
    numbers = sorted(number for one in group for number in one.probes)
    early = sorted(number for one in group if one.ended_early for number in one.probes)
    ended = f"; {_some(early)} ended early" if early else ""
    return f"a step takes {texts} with {knob}={show(value)} (probe {_some(numbers)}{ended})"


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"{probes_text(numbers[:MOST_NAMED])}{more}"


# -- pairs of probes --------------------------------------------------------------------------


class _Pairs:
    """Pairs of probes, by the knob in which they differ."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.timed = compared_settings(known)
        seen = (known.findings, known.too_large, self.timed)
        self._probed = [s for s in known.space.legal if any(s in found for found in seen)]
        self._alike: dict[str, defaultdict[Any, list[Settings]]] = {}
        """Those that differ in one knob at most, by that knob and by what the others are."""

    def nearest(self, best: Settings, knob: str) -> list[Settings]:
        """Probed settings that differ in one knob; of micro-batches the next sizes only."""
        others = self.differing(best, knob)
        if knob != MICRO:
            return others
        size = best.micro_batch_size
        below = [s for s in others if s.micro_batch_size < size]
        above = [s for s in others if s.micro_batch_size > size]
        return [*sorted(below, key=_micro)[-1:], *sorted(above, key=_micro)[:1]]

    def differing(self, best: Settings, knob: str) -> list[Settings]:
        """Probed settings that differ from ``best`` in ``knob`` only, the global batch kept."""
        others = OTHERS_CHOSEN[knob]
        if knob not in self._alike:
            found = self._alike[knob] = defaultdict(list)
            for one in self._probed:
                found[others(one)].append(one)
        return [one for one in self._alike[knob].get(others(best), ()) if one != best]

    def compared(
        self, best: Timed, other: Settings, knob: str, where: str = "With"
    ) -> tuple[float, str]:
        """How large the effect on speed is, and the sentence."""
        mine, theirs = show(getattr(best.settings, knob)), show(getattr(other, knob))
        text = f"{where} {knob}={theirs} instead of {mine}"
        found = self.timed.get(other)
        if found is None:
            need = self.known.too_large.get(other)
            return 0.0, f"{text}, {_shortage(need) if need else 'no time was taken'}."
        change = change_between(best, found)
        beside = ", which does not fit" if other in self.known.too_large else ""
        if wrong := self.known.wrong.get(other):
            may = "may train" if wrong.is_unconfirmed else "trains"
            beside += f", but {may} something else and is not suggested"
        return change.size, (
            f"{text}, a step takes {seconds_text(found.seconds)} ({change}) and needs"
            f" {size_text(found.needed_bytes)}{beside}"
            f" ({found.source} against {probes_text(best.probes)})."
        )


def _differs_in(knob: str, one: Settings, other: Settings) -> bool:
    """Says if settings differ in one knob only, and in the accumulation that follows from it."""
    others = OTHERS_CHOSEN[knob]
    return one != other and bool(others(one) == others(other))


def _micro(settings: Settings) -> int:
    return settings.micro_batch_size


def _shortage(need: Need) -> str:
    more = "at least " if need.at_least else ""
    return f"a device would need {more}{size_text(need.bytes)} (probe #{need.probe_id})"


def _elsewhere(pairs: _Pairs, best: Finding, knobs: Sequence[str]) -> dict[str, str]:
    """Says what knobs did to the fastest configurations of which a pair was probed, by knob."""
    found: dict[str, str] = {}
    for knob in knobs:
        for finding in (f for f in pairs.known.fitting if f is not best):
            others = [s for s in pairs.differing(finding.settings, knob) if s in pairs.timed]
            if others:
                one = pairs.timed[finding.settings]
                found[knob] = pairs.compared(one, others[0], knob, "Elsewhere, with")[1]
                break
    return found


# -- the belief -------------------------------------------------------------------------------


def _believed(
    known: Knowledge, best: Finding, outlook: SpeedOutlook, knobs: Sequence[str], called: str
) -> Iterator[str]:
    """Says what knobs should do where no pair of probes tells, the largest effect first."""
    found = [
        effect
        for knob in knobs
        for effect in outlook.effects(best.settings, knob, _others(known, best.settings, knob))
    ]
    if found:
        found.sort(key=lambda e: (-e.change.size, e.knob, str(e.value)))
        texts = "; ".join(_effect_text(best.settings, effect) for effect in found)
        yield (
            f"No two probes tell what {called} do to the answer. On average over the settings"
            f" that are expected to fit, {outlook.grounds}, a step takes {texts}."
        )


def _is_live(known: Knowledge, best: Settings, knob: str) -> bool:
    """Says if a knob acts in the answer: for all but sizes, whether it alone can be changed."""
    return KNOBS[knob].kind is int or any(_differs_in(knob, s, best) for s in known.space.legal)


def _others(known: Knowledge, best: Settings, knob: str) -> list[Any]:
    """Other values of a knob; of sizes, the nearest."""
    mine = getattr(best, knob)
    values = {getattr(s, knob) for s in known.space.legal} - {mine}
    if KNOBS[knob].kind is not int:
        return sorted(values)
    below, above = [v for v in values if v < mine], [v for v in values if v > mine]
    return [*sorted(below)[-1:], *sorted(above)[:1]]


def _effect_text(best: Settings, effect: Effect) -> str:
    pairs = "1 pair" if effect.pairs == 1 else f"{effect.pairs} pairs"
    return (
        f"{change_text(effect.change.ratio)} with {effect.knob}={show(effect.value)} instead of"
        f" {show(getattr(best, effect.knob))} ({effect.change.interval_text}, {pairs})"
    )
