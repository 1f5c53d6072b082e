"""Predicts any legal configuration of a study's space by the cost model.

The figures are those that a predicted answer has for the same settings, never measured ones. What
probes found of the very settings stands beside them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import log
from typing import Any

from tuner.core.configuration import ACCUMULATION, KNOBS, InactiveKnob, Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import Provenance, weakest
from tuner.core.study import Question, Study
from tuner.core.words import seconds_text
from tuner.errors import UsageError
from tuner.explain.english import basis_text, failure_text, grounds_text
from tuner.explain.knobs import CHOSEN, MICRO
from tuner.explain.memory import memory_facts
from tuner.results.points import Evidence
from tuner.space import Space, check_settings, enumerate_space, settings_notes
from tuner.text import show, show_all


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChoice:
    """One knob, and the values that it has in some legal settings."""

    knob: str
    values: tuple[Any, ...]
    """In order: numbers ascending, ``False`` before ``True``, names as they are listed."""
    follows: bool
    """Whether it follows from the others, and is not chosen: gradient accumulation."""
    why_one: str
    """Why it has one value only, in words; empty where it has several."""

    @property
    def is_live(self) -> bool:
        return len(self.values) > 1 and not self.follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One value of a knob, given the others."""

    value: Any
    shown: str
    settings: Settings | None
    """What it leads to: the others stay as they are, accumulation makes up the global batch, and
    knobs that are inactive there have their canonical value. ``None`` when it is not legal."""
    is_current: bool
    why_not: str
    """Why it is not legal, or does not act there; empty of what does."""


class Choices:
    """Choices in a study's space."""

    def __init__(self, study: Study) -> None:
        self.question, space = study.question, enumerate_space(study.question)
        self.knobs = tuple(_choice(study.question, space, knob) for knob in KNOBS)
        self.legal, self.dead_knobs = space.legal, space.dead_knobs
        self._legal = frozenset(space.legal)

    def __contains__(self, settings: object) -> bool:
        """Tells whether settings are legal ones, in canonical form."""
        return settings in self._legal

    def options(self, settings: Settings) -> Mapping[str, tuple[Option, ...]]:
        """Lists the values of each knob that can be chosen, given that the others are as in
        ``settings``.
        """
        return {
            choice.knob: tuple(self._option(settings, choice.knob, v) for v in choice.values)
            for choice in self.knobs
            if choice.is_live
        }

    def nearest(self, values: Mapping[str, object], keep: str = "") -> Settings:
        """The legal settings that are nearest to these values.

        They are these values, where that is legal but for knobs that are inactive there. Else
        as many knobs as possible are as wanted, the batch sizes giving way before the others.

        Args:
            values: of knobs; those that are left out are wanted at their defaults. Accumulation
                counts for nothing: it follows.
            keep: a knob whose value is had, if any legal settings have it: what was just moved.
        """
        wanted = Settings.from_dict({**values, ACCUMULATION: 1})
        with_it = [s for s in self.legal if keep and getattr(s, keep) == getattr(wanted, keep)]
        found = self._checked(wanted, (keep,) if keep else ())
        if isinstance(found, Settings):
            return found
        others = [knob for knob in CHOSEN if knob != MICRO]

        def distance(one: Settings) -> tuple[int, float]:
            apart = sum(getattr(one, name) != getattr(wanted, name) for name in others)
            return apart, abs(log(one.micro_batch_size / wanted.micro_batch_size))

        return min(with_it or self.legal, key=distance)

    def _option(self, settings: Settings, knob: str, value: Any) -> Option:
        is_current = getattr(settings, knob) == value
        wanted = Settings.from_dict({**settings.as_dict(), knob: value, ACCUMULATION: 1})
        found = settings if is_current else self._checked(wanted, (knob,))
        leads_to, why_not = (None, str(found)) if isinstance(found, UsageError) else (found, "")
        if leads_to is not None and getattr(leads_to, knob) != value:  # it is inactive there
            notes = settings_notes(self.question, wanted, given=(knob,))
            why_not = "; ".join(note.why for note in notes if note.knob == knob)
        return Option(
            value=value,
            shown=show(value),
            settings=leads_to,
            is_current=is_current,
            why_not=why_not,
        )

    def _checked(self, wanted: Settings, given: Sequence[str]) -> Settings | UsageError:
        """Their canonical form in the space; why not, where they are not legal."""
        try:
            found = check_settings(self.question, wanted, given=given)
        except UsageError as error:
            return error
        if found in self:
            return found
        # Offloading can be had, but is in the space only when it is asked for.
        return UsageError("settings", str(found), "is not in the space that the study looks at")


def _choice(question: Question, space: Space, knob: str) -> KnobChoice:
    kind = KNOBS[knob].kind
    place: Callable[[Any], int] = list(kind).index if issubclass(kind, StrEnum) else int
    values = sorted({getattr(settings, knob) for settings in space.legal}, key=place)
    only = f"{knob} is {show(values[0])}"
    if len(values) > 1:
        why = ""
    elif reasons := [one.why for one in space.dead_knobs if one.knob == knob]:
        why = "; ".join(reasons)
    elif knob in question.knobs:
        why = f"{only}: it was asked for {show_all(question.knobs[knob])} only"
    elif knob == "fused_loss":
        why = f"{only}: logits are small beside the GPU's memory, and it was not asked for"
    elif knob in ("cpu_offload", "cp_size"):
        why = f"{only}: other values are looked at only when they are asked for"
    else:
        why = f"{only} in all legal settings"
    return KnobChoice(knob=knob, values=tuple(values), follows=knob == ACCUMULATION, why_one=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A configuration as it is predicted, beside what was seen of it."""

    predicted: Evaluation
    collapsed: tuple[InactiveKnob, ...]
    """Knobs that were asked for at other values, with the reasons why they have not got them."""
    notes: tuple[str, ...]
    """What is to be known of the figures, in sentences: what they are from, and how sure."""
    seen: tuple[Evaluation, ...]
    """What was measured or emulated of these very settings, the fidelity asked for first."""

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's; of what is unknown, the other's."""
        known = (self.predicted.needed_bytes, self.predicted.step_time_s)
        return weakest(one.provenance for one in known if one.value is not None)


class Predictor:
    """Answers what-if questions of one study; what they share is made once, at the first one.

    Safe to use from any thread.
    """

    def __init__(self, study: Study, evidence: Evidence | None = None) -> None:
        self.study = study
        self.evidence = evidence or Evidence(study)

    @cached_property
    def choices(self) -> Choices:
        return Choices(self.study)

    def what_if(self, settings: Settings, *, given: Collection[str] = ()) -> WhatIf:
        """Predicts a configuration, with what was seen of it.

        Args:
            settings: as for :func:`tuner.space.check_settings`: an accumulation of 1 counts as
                left out, and is derived from the global batch.
            given: names of knobs that were written, as there.
        """
        question = self.study.question
        checked = check_settings(question, settings, given=given)
        if checked not in self.choices:
            raise UsageError("settings", str(checked), "is not in the space of this study")
        collapsed = settings_notes(question, settings, given=given)
        evidence, known = self.evidence, self.evidence.forecast
        notes: Iterable[str] = ()
        if (found := known.estimates.get(checked)) is not None:
            notes, found = _notes(evidence, found), evidence.with_speed(found)
        else:
            if refused := known.refused.get(checked.layout):
                why = f"their dry run failed: {failure_text(refused)}"
            elif wrong := known.wrong.get(checked):
                why = wrong.why
            else:
                why = next(why for why, ones in known.uncovered.items() if checked in ones)
            found = Evaluation(settings=checked, limit_bytes=known.limit_bytes, why=why)
        return WhatIf(
            predicted=found, collapsed=collapsed, notes=tuple(notes), seen=evidence.seen(checked)
        )

    def explain(self, settings: Settings) -> tuple[str, ...]:
        """Explains where the predicted memory of a legal configuration goes, and what each knob
        would change.
        """
        question, known = self.study.question, self.evidence.forecast
        if settings not in known.estimates:
            return ()
        profiles = {key: profile for key, (profile, _) in known.profiles.items()}
        return tuple(map(str, memory_facts(question, settings, profiles)))


def _notes(evidence: Evidence, found: Evaluation) -> Iterator[str]:
    """Lists what the figures rest on, and what to know of them."""
    known = evidence.forecast
    why = known.why_no_dry_run(found.settings) if not found.probes else ""
    yield f"The memory is {basis_text(found)}{f': {why}' if why else ''}."
    rates = " at assumed rates" if known.at_assumed_rates else ""
    if found.step_time_s.value is None:
        if evidence.expectation:
            yield f"The step time is {grounds_text(evidence.expectation.grounds)}."
    elif found.factor == 1.0 and not found.near:
        yield f"The step time is by arithmetic{rates}."
    else:
        whom = "other studies" if found.near else "the probes of this study"
        before = seconds_text(found.seconds / found.factor)
        yield (
            f"The step time is {before} by arithmetic{rates}, times {found.factor:.2f}: by so much"
            f" {whom} found other steps to be off."
        )
    yield from (f"{note[0].upper()}{note[1:]}." for note in found.notes)
    if found.probes:
        yield from (f"Of its dry run: {note}." for note in known.notes(found))
