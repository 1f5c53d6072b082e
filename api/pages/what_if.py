"""What any settings of a study would need and take, beside its best: the what-if page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api.pages.drawings import settings_path
from api.pages.form_fields import KNOB_LABELS
from api.pages.settings_words import settings_parts
from api.pages.what_if_words import against_best, against_measured, verdict
from tuner.answering.words import rank_word, speed_text
from tuner.errors import UsageError
from tuner.results import Figures, KnobChoice, Option, Predictor, WhatIf
from tuner.settings import KNOBS, Settings, knob_value, parse_settings
from tuner.space.dead import show
from tuner.study import Study
from tuner.suggestion import GIB, Candidate, Suggestion

ACCUMULATION = "gradient_accumulation_steps"
BEFORE = "from"
"""Field of the settings that were shown before, which tells what was moved."""
AT = "at."
"""Before a knob's name: the number of a value, which is all that a slider sends by itself."""
MOST_SEGMENTS = 3
"""Values of a number up to which they stand side by side; more are a slider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was chosen, and what it led to."""

    settings: Settings
    """Legal ones."""
    notes: tuple[str, ...] = ()
    """What gave way, and why; nothing where all is as it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A slider, or values side by side."""

    choice: KnobChoice
    """What may be chosen."""
    options: tuple[Option, ...]
    """Its values, given the others."""

    @property
    def knob(self) -> str:
        """Its name."""
        return self.choice.knob

    @property
    def label(self) -> str:
        """What people call it."""
        return KNOB_LABELS[self.knob]

    @property
    def id(self) -> str:
        """Of its element."""
        return f"k-{self.knob.replace('_', '-')}"

    @property
    def is_slider(self) -> bool:
        """Whether it is a slider."""
        return KNOBS[self.knob] is int and len(self.options) > MOST_SEGMENTS

    @property
    def at(self) -> int:
        """The number of the current value."""
        return next(n for n, option in enumerate(self.options) if option.is_current)

    @property
    def shown(self) -> tuple[str, ...]:
        """Its values in words."""
        if KNOBS[self.knob] is bool:
            return tuple("on" if option.value else "off" for option in self.options)
        return tuple(option.shown.replace("_", " ") for option in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown of some settings."""

    study: Study
    """Whose."""
    best: Candidate | None
    """Its best settings."""
    found: WhatIf
    """What is predicted."""
    moved: Moved
    """What was chosen."""
    controls: tuple[Control, ...]
    """What can be moved."""
    fixed: tuple[KnobChoice, ...]
    """Knobs that have one value here."""
    verdict: str
    """Whether they fit, in words."""
    against: tuple[str, ...]
    """The same beside the best settings, in sentences."""
    seen: tuple[tuple[Figures, str], ...]
    """What was measured of these very settings, each with how it compares to the best."""
    explanation: tuple[str, ...]
    """Where the memory goes."""

    @property
    def per(self) -> str:
        """What a rank is to its user."""
        return rank_word(self.study.question)

    @property
    def words(self) -> tuple[str, ...]:
        """The settings in words."""
        return settings_parts(self.found.settings)

    @property
    def why(self) -> str:
        """Why they do not run, or something is unknown; empty where the verdict says it."""
        need, why = self.found.memory_gib.value, self.found.why
        is_said = self.found.fits is False and need is not None and need > self.found.limit_gib
        return "" if is_said else f"{why[:1].upper()}{why[1:]}"

    @property
    def is_best(self) -> bool:
        """Whether these are the best settings."""
        return self.best is not None and self.best.settings == self.found.settings

    @property
    def best_path(self) -> str:
        """Address of the best settings; empty where there are none."""
        return settings_path(self.study.id, self.best.settings) if self.best else ""

    @property
    def path(self) -> str:
        """Address of these settings."""
        return settings_path(self.study.id, self.found.settings)

    @property
    def key(self) -> str:
        """The settings as :func:`tuner.settings.parse_settings` reads them."""
        return str(self.found.settings)

    @property
    def in_short(self) -> str:
        """What a screen reader says while one moves the knobs."""
        return ". ".join((*self.moved.notes, self.summary))

    @property
    def summary(self) -> str:
        """Whether they fit, and their speed."""
        speed = self.found.tokens_per_s_per_gpu.value
        rate = f"{speed_text(speed)} tokens/s per {self.per}" if speed else "speed unknown"
        return f"{rate} · {self.verdict}"

    @property
    def sizes_bytes(self) -> dict[str, float]:
        """Memory by category."""
        return {name: size * GIB for name, size in self.found.breakdown_gib.items()}

    @property
    def state(self) -> dict[str, Any]:
        """What the controls show, for the script that moves them."""
        return {
            control.knob: {
                "at": control.at,
                "options": [
                    {"text": text, "why": option.why_not}
                    for option, text in zip(control.options, control.shown, strict=True)
                ],
            }
            for control in self.controls
        }


def page_of(predictor: Predictor, suggestion: Suggestion | None, values: Mapping[str, str]) -> Page:
    """What is shown of the settings that an address names.

    Args:
        predictor: of the study.
        suggestion: its answer, if it has one.
        values: the address's; without any, the best settings are shown.

    Raises:
        UsageError: an unknown knob, or a value that it cannot take; or no settings are legal.
    """
    best = suggestion.best if suggestion else None
    moved = read_moved(predictor, best.settings if best else None, values)
    found = predictor.what_if(moved.settings)
    options = predictor.choices.options(moved.settings)
    knobs = predictor.choices.knobs
    is_best = best is not None and best.settings == moved.settings
    at_best = predictor.what_if(best.settings) if best and not is_best else None
    per = rank_word(predictor.study.question)
    return Page(
        study=predictor.study,
        best=best,
        found=found,
        moved=moved,
        controls=tuple(
            Control(choice=one, options=options[one.knob]) for one in knobs if one.knob in options
        ),
        fixed=tuple(one for one in knobs if one.knob not in options and not one.follows),
        verdict=verdict(found),
        against=against_best(found, at_best, per) if at_best else (),
        seen=tuple(
            (seen, against_measured(seen, None if is_best else best)) for seen in found.seen
        ),
        explanation=predictor.explain(moved.settings),
    )


def read_moved(predictor: Predictor, best: Settings | None, values: Mapping[str, str]) -> Moved:
    """The settings that were chosen, or the legal ones that are nearest, and what gave way.

    Raises:
        UsageError: an unknown knob, or a value that it cannot take.
    """
    choices = predictor.choices
    chosen = _chosen(predictor, values)
    if not chosen:
        if best is None or best not in choices:
            best = _first(predictor)
        return Moved(settings=best)
    before = _before(values)
    wanted = Settings.from_dict({**_start(best, before), **chosen, ACCUMULATION: 1})
    keep = _keep(wanted, before)
    found = choices.nearest(wanted.as_dict(), keep=keep)
    return Moved(settings=found, notes=tuple(_gave_way(predictor, wanted, found)))


def _first(predictor: Predictor) -> Settings:
    """What to begin with where there is no answer: what is predicted to be the fastest that fits,
    as far as anything is known.
    """
    known = predictor.evidence.forecast
    found = next(iter((*known.fitting[:1], *known.timed[:1])), None)
    return found.settings if found else predictor.choices.legal[0]


def _chosen(predictor: Predictor, values: Mapping[str, str]) -> dict[str, Any]:
    """The knobs that an address names; accumulation follows from the others."""
    chosen: dict[str, Any] = {}
    for choice in predictor.choices.knobs:
        if choice.knob in values:
            chosen[choice.knob] = knob_value(choice.knob, values[choice.knob])
        if (at := values.get(AT + choice.knob)) is not None:
            chosen[choice.knob] = _value_at(choice, at)
    for name in values:
        if name.removeprefix(AT) not in KNOBS and name != BEFORE:
            known = ", ".join(KNOBS)
            raise UsageError(name[:80], values[name], f"no such knob; the knobs are {known}")
    chosen.pop(ACCUMULATION, None)
    return chosen


def _value_at(choice: KnobChoice, at: str) -> Any:
    if at.isascii() and at.isdecimal() and len(at) < 5 and int(at) < len(choice.values):
        return choice.values[int(at)]
    allowed = f"must be the number of one of its values, up to {len(choice.values) - 1}"
    raise UsageError(AT + choice.knob, at, allowed)


def _before(values: Mapping[str, str]) -> Settings | None:
    text = values.get(BEFORE, "")
    return parse_settings(text[:1000]) if text else None


def _start(best: Settings | None, before: Settings | None) -> dict[str, Any]:
    """What knobs have that are not named."""
    known = before or best
    return known.as_dict() if known else {}


def _keep(wanted: Settings, before: Settings | None) -> str:
    """The knob that was moved, which the others follow."""
    if before is None:
        return ""
    differ = (k for k in KNOBS if k != ACCUMULATION and getattr(wanted, k) != getattr(before, k))
    return next(differ, "")


def _gave_way(predictor: Predictor, wanted: Settings, found: Settings) -> Iterator[str]:
    """What is otherwise than it was chosen, in sentences."""
    knobs = [k for k in KNOBS if k != ACCUMULATION and getattr(wanted, k) != getattr(found, k)]
    if not knobs:
        return
    try:
        collapsed = predictor.what_if(wanted, given=knobs).collapsed
    except UsageError as error:
        changes = ", ".join(f"{knob} to {show(getattr(found, knob))}" for knob in knobs)
        yield f"Moved along: {changes}. Otherwise it would not be legal: {error}."
    else:
        yield from (note.why for note in collapsed)
