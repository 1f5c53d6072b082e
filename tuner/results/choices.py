"""Lists the choices in the space of a question: values of knobs, and what each leads to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import log
from typing import Any

from tuner.core.configuration import ACCUMULATION, KNOBS, InactiveKnob, Settings
from tuner.core.study import Question, Study
from tuner.errors import UsageError
from tuner.explain.knobs import CHOSEN, MICRO
from tuner.space import Space, check_settings, enumerate_space, settings_notes
from tuner.space.rules import show, show_all


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
    knobs that are dead there have their canonical value. ``None`` when it is not legal."""
    is_current: bool
    why_not: str
    """Why it is not legal, or does not act there; empty of what does."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Choices in a study's space."""

    question: Question
    knobs: tuple[KnobChoice, ...]
    legal: tuple[Settings, ...]
    dead_knobs: tuple[InactiveKnob, ...]

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

        They are these values, where that is legal but for knobs that are dead there. Else as many
        knobs as possible are as wanted, the batch sizes giving way before the others.

        Args:
            values: of knobs; those that are left out are wanted at their defaults. Accumulation
                counts for nothing: it follows.
            keep: a knob whose value is had, if any legal settings have it: what was just moved.

        Raises:
            UsageError: an unknown knob, or a value that it cannot take.
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

    @cached_property
    def _legal(self) -> frozenset[Settings]:
        return frozenset(self.legal)


def choices(study: Study) -> Choices:
    question, space = study.question, enumerate_space(study.question)
    return Choices(
        question=question,
        knobs=tuple(_choice(question, space, knob) for knob in KNOBS),
        legal=space.legal,
        dead_knobs=space.dead_knobs,
    )


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
    elif knob == "cpu_offload":
        why = f"{only}: other values are looked at only when they are asked for"
    else:
        why = f"{only} in all legal settings"
    return KnobChoice(knob=knob, values=tuple(values), follows=knob == ACCUMULATION, why_one=why)
