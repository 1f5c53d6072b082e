"""Finds which knob mattered how much: by probes that differ in one knob, else by the model."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tuner.catalog.gpus import MIB
from tuner.core.configuration import ACCUMULATION, KNOBS, OTHERS_CHOSEN, Settings
from tuner.core.evaluation import Evaluation
from tuner.core.words import listed, seconds_text
from tuner.explain.english import few_probes_text
from tuner.explain.facts import Fact, KnobChange, fact, knob_changes
from tuner.planner.expectation import Expectation
from tuner.planner.knowledge import Knowledge
from tuner.planner.ranking import near
from tuner.planner.step_times import change_between, compared, timed
from tuner.planner.timing import alike
from tuner.text import show

MICRO = "micro_batch_size"
# Knobs that are chosen; accumulation makes up the global batch.
CHOSEN = tuple(knob for knob in KNOBS if knob != ACCUMULATION)
# Knobs that are compared in other configurations, where the answer itself was in no such pair.
TOLD_FROM_OTHERS = ("sync_each_batch", "defer_all_reduce", "tp_recompute_allgather")

# Part by which step times may differ where nothing is said to have changed them: two runs of the
# same configuration, each 2% off (as ``LEAST_ERROR`` of :mod:`tuner.search.belief`).
SAME = 0.03
# Part by which they must differ where a knob is said to be all that changed them.
CLEAR = 0.1


def knob_facts(known: Knowledge, best: Evaluation, expectation: Expectation) -> Iterator[Fact]:
    """One knob that was all that mattered; pairs of probes, the largest effect first; the rest."""
    only = only_knob(known)
    if only is not None:
        yield only.fact
    pairs = _Pairs(known)
    paired = {knob: pairs.nearest(best.settings, knob) for knob in CHOSEN}
    answer = pairs.timed[best.settings]
    found = [pairs.compared(answer, one, knob) for knob in CHOSEN for one in paired[knob]]
    yield from (knob_changes("knob_probed", [one]) for one in sorted(found, key=_largest_first))
    told = {only.knob, *only.without_effect, *only.confounded} if only else set[str]()
    told |= {knob for knob in CHOSEN if paired[knob]}
    for knob in TOLD_FROM_OTHERS:
        elsewhere = None if paired[knob] else pairs.in_another(best, knob)
        if elsewhere is not None:
            yield knob_changes("knob_probed", [elsewhere])
            told.add(knob)
    changes, question = [], known.study.question
    arithmetic_counts = question.script is None and question.workload.has_arithmetic
    for knob in (one for one in CHOSEN if one not in told):
        is_size, groups = KNOBS[knob].kind is int, known.space.differing_in(knob)
        # For all but sizes a knob acts where it alone can be changed.
        if not is_size and len(groups[OTHERS_CHOSEN[knob](best.settings)]) == 1:
            continue
        mine = getattr(best.settings, knob)
        values = sorted(set().union(*groups.values()) - {mine})
        if is_size:  # the nearest
            values = [*[v for v in values if v < mine][-1:], *[v for v in values if v > mine][:1]]
        for value, other, step, count in expectation.effects(best.settings, knob, values):
            one = KnobChange(knob=knob, value=value, instead_of=mine, step=step, pairs=count)
            if other is not None and arithmetic_counts:
                needed = expectation.needed_bytes(other, best)
                spent = round((needed - best.expected_bytes) / MIB) * MIB
                fits = needed <= known.limit_bytes
                one = replace(one, needed_bytes=needed, memory_bytes=spent, fits=fits)
            changes.append(one)
    if changes:
        changes.sort(key=_largest_first)
        more = {"grounds": expectation.grounds, "others_are_known": bool(told)}
        yield knob_changes("knobs_expected", changes, **more)


def _largest_first(one: KnobChange) -> tuple[float, str, str]:
    return -(one.step.size if one.step else 0.0), one.knob, str(one.value)


# -- one knob only ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGroup:
    """Configurations that were timed with one value of a knob."""

    value: Any
    low_s: float
    high_s: float
    probes: tuple[int, ...]
    early: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyKnob:
    """One knob whose value alone decided what the steps of all probes took."""

    knob: str
    groups: tuple[ValueGroup, ...]
    without_effect: tuple[str, ...]
    """Knobs that differ between configurations of one value, and changed nothing."""
    confounded: tuple[str, ...] = ()
    """Knobs of which the same could be said: no probe tells them apart."""

    @property
    def fact(self) -> Fact:
        told = []
        for one in self.groups:
            ends = dict.fromkeys((seconds_text(one.low_s), seconds_text(one.high_s)))
            probes = few_probes_text(one.probes)
            probes += f"; {few_probes_text(one.early)} ended early" if one.early else ""
            value = f"{self.knob}={show(one.value)}"
            told.append(f"a step takes {' to '.join(ends)} with {value} (probe {probes})")
        return fact(
            "only_knob",
            f"Of what was probed, only {' or '.join((self.knob, *self.confounded))} changed the"
            f" speed: {'; '.join(told)}. Those of the same {self.knob} cannot be told apart, though"
            f" they differ in {listed(self.without_effect)}.",
            knob=self.knob,
            groups=self.groups,
            without_effect=self.without_effect,
            confounded=self.confounded,
        )


def only_knob(known: Knowledge) -> OnlyKnob | None:
    """The one knob that mattered; ``None`` where several did, or probes cannot tell."""
    probed = list(timed(known).values())
    found = [one for knob in CHOSEN if (one := _as_only(known, probed, knob)) is not None]
    if not found:
        return None
    first, *others = sorted(found, key=lambda one: -len(one.without_effect))
    names = tuple(one.knob for one in others)
    without = tuple(knob for knob in first.without_effect if knob not in names)
    return replace(first, without_effect=without, confounded=names) if without else None


def _as_only(known: Knowledge, probed: Sequence[Evaluation], knob: str) -> OnlyKnob | None:
    by_value: dict[Any, list[Evaluation]] = defaultdict(list)
    for finding in probed:
        by_value[getattr(finding.settings, knob)].append(finding)
    leaders = sorted(
        (min(group, key=lambda f: f.seconds) for group in by_value.values()),
        key=lambda f: f.seconds,
    )
    if not leaders or leaders[-1].seconds <= (1 + CLEAR) * leaders[0].seconds:
        return None
    tolerance = max(known.study.limits.tolerance, SAME)
    same = all(
        near(one, other, tolerance) or alike(one.spread_s, other.spread_s)
        for group in by_value.values()
        for one, other in combinations(group, 2)
    )
    if not same or not change_between(leaders[0], leaders[-1]).is_clear:
        return None
    # Knobs that take several values within one group.
    without = tuple(
        other
        for other in CHOSEN
        if any(len({getattr(f.settings, other) for f in group}) > 1 for group in by_value.values())
    )
    if not without:
        return None
    groups = [by_value[getattr(leader.settings, knob)] for leader in leaders]
    told = tuple(
        ValueGroup(
            value=getattr(group[0].settings, knob),
            low_s=min(f.seconds for f in group),
            high_s=max(f.seconds for f in group),
            probes=tuple(sorted((n for one in group for n in one.probe_ids), key=abs)),
            early=tuple(
                sorted((n for one in group if one.ended_early for n in one.probe_ids), key=abs)
            ),
        )
        for group in groups
    )
    return OnlyKnob(knob=knob, groups=told, without_effect=without)


# -- pairs of probes --------------------------------------------------------------------------


class _Pairs:
    """Pairs of probes, by the knob in which they differ."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.timed = compared(known)
        seen = (known.findings, known.too_large, self.timed)
        self._probed = {settings for found in seen for settings in found}

    def nearest(self, best: Settings, knob: str) -> list[Settings]:
        """Probed configurations that differ in one knob; of micro-batches the next sizes only."""
        others = self.differing(best, knob)
        if knob != MICRO:
            return others
        others.sort(key=lambda s: s.micro_batch_size)
        below = [s for s in others if s.micro_batch_size < best.micro_batch_size]
        above = [s for s in others if s.micro_batch_size > best.micro_batch_size]
        return [*below[-1:], *above[:1]]

    def differing(self, best: Settings, knob: str) -> list[Settings]:
        """Probed configurations that differ from ``best`` in ``knob`` only, the global batch
        kept."""
        space, framework = self.known.space, self.known.study.question.framework
        places = space.changed(best, knob, puts_off=framework.puts_off).values()
        found = (space.legal[place] for place in places)
        return [one for one in found if one != best and one in self._probed]

    def in_another(self, best: Evaluation, knob: str) -> KnobChange | None:
        """The effect of a knob on the fastest configuration of which a pair was probed."""
        for finding in (f for f in self.known.fitting if f.settings != best.settings):
            for other in self.differing(finding.settings, knob):
                if other in self.timed:
                    change = self.compared(self.timed[finding.settings], other, knob)
                    return replace(change, of_answer=False)
        return None

    def compared(self, best: Evaluation, other: Settings, knob: str) -> KnobChange:
        found, need = self.timed.get(other), self.known.too_large.get(other)
        wrong = self.known.wrong.get(other)
        change = KnobChange(
            knob=knob,
            value=getattr(other, knob),
            instead_of=getattr(best.settings, knob),
            configuration=other,
            fits=need is None,
            against=best.probe_ids,
        )
        if found is not None:
            change = replace(
                change,
                step=change_between(best, found),
                step_s=found.seconds,
                needed_bytes=found.most_bytes,
                memory_bytes=found.expected_bytes - best.expected_bytes,
                probes=found.probe_ids,
                ended_early=found.ended_early,
            )
            if wrong:
                trains = "maybe wrongly" if wrong.is_unconfirmed else "wrongly"
                change = replace(change, trains=trains)
        elif need is not None:
            change = replace(
                change,
                needed_bytes=need.most_bytes,
                at_least=need.at_least,
                probes=need.probe_ids[:1],
            )
        return change
