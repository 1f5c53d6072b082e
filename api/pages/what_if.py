"""The what-if page: the need and speed of any configuration of a study, beside its best."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from api.pages.charts import memory_bar
from api.pages.charts.memory import OUTSIDE
from api.pages.charts.scales import interval_of
from api.pages.render import settings_path
from tuner.core.answer import Candidate, Suggestion
from tuner.core.configuration import KNOBS, Settings, knob_value, parse_settings, short_parts
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.quantity import Quantity
from tuner.core.study import Study
from tuner.core.words import rank_word, share_text, speed_text
from tuner.errors import UsageError
from tuner.results import KnobChoice, Option, Predictor, WhatIf
from tuner.space.inactive import show
from tuner.text import size_text

# Relative difference below which two figures are called equal.
SAME = 0.0005
ACCUMULATION = "gradient_accumulation_steps"
# Field of the settings that were shown before, which tells what was moved.
BEFORE = "from"
# Before a knob's name: the number of a value, which is all that a slider sends by itself.
AT = "at."
# Values of a number up to which they stand side by side; more are a slider.
MOST_SEGMENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The configuration that a choice led to."""

    settings: Settings
    """A legal one."""
    notes: tuple[str, ...] = ()
    """The knobs that gave way, and why; nothing where all is as it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobControl:
    """A slider, or values side by side."""

    knob: str
    options: tuple[Option, ...]
    """Its values, given the others."""

    @property
    def label(self) -> str:
        """Its name as people say it."""
        return KNOBS[self.knob].label

    @property
    def id(self) -> str:
        """The id of its element."""
        return f"k-{self.knob.replace('_', '-')}"

    @property
    def is_slider(self) -> bool:
        """True of a number with many values."""
        return KNOBS[self.knob].kind is int and len(self.options) > MOST_SEGMENTS

    @property
    def at(self) -> int:
        """The number of the current value."""
        return next(n for n, option in enumerate(self.options) if option.is_current)

    @property
    def shown(self) -> tuple[str, ...]:
        """Its values in words."""
        if KNOBS[self.knob].kind is bool:
            return tuple("on" if option.value else "off" for option in self.options)
        return tuple(option.shown.replace("_", " ") for option in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPage:
    """A configuration as it is predicted, beside the best and beside what was measured of it."""

    study: Study
    best: Candidate | None
    """The study's best configuration."""
    found: WhatIf
    moved: Moved
    controls: tuple[KnobControl, ...]
    fixed: tuple[KnobChoice, ...]
    """Knobs that have one value here."""
    fit: str
    """Whether it fits, in words."""
    against: tuple[str, ...]
    """The same beside the best configuration, in sentences."""
    measured: tuple[tuple[Evaluation, str], ...]
    """Measurements of this very configuration, each with how it compares to the best."""
    explanation: tuple[str, ...]
    """Where the memory goes."""

    @property
    def per(self) -> str:
        """The word for a rank."""
        return rank_word(self.study.question)

    @property
    def words(self) -> tuple[str, ...]:
        """The configuration in words."""
        return short_parts(self.found.settings)

    @property
    def why(self) -> str:
        """The reason why it does not run, or is unknown; empty where ``fit`` says it."""
        need, why = self.found.memory_gib.value, self.found.why
        is_said = self.found.fits is False and need is not None and need > self.found.limit_gib
        return "" if is_said else f"{why[:1].upper()}{why[1:]}"

    @property
    def is_best(self) -> bool:
        """True of the best configuration."""
        return self.best is not None and self.best.settings == self.found.settings

    @property
    def best_path(self) -> str:
        """The address of the best configuration; empty where there is none."""
        return settings_path(self.study.id, self.best.settings) if self.best else ""

    @property
    def path(self) -> str:
        """The address of this configuration."""
        return settings_path(self.study.id, self.found.settings)

    @property
    def key(self) -> str:
        """The configuration as :func:`tuner.core.configuration.parse_settings` reads it."""
        return str(self.found.settings)

    @property
    def in_short(self) -> str:
        """The words of a screen reader while one moves the knobs."""
        return ". ".join((*self.moved.notes, self.summary))

    @property
    def summary(self) -> str:
        """Its speed, and whether it fits."""
        speed = self.found.tokens_per_s_per_gpu.value
        rate = f"{speed_text(speed)} tokens/s per {self.per}" if speed else "speed unknown"
        return f"{rate} · {self.fit}"

    @property
    def bar(self) -> Markup:
        """The predicted memory against the limit; empty where it is unknown."""
        sizes = {name: size * GIB for name, size in self.found.breakdown_gib.items()}
        if not sizes:
            return Markup()
        if self.found.outside_gib > 0:
            sizes[OUTSIDE] = self.found.outside_gib * GIB
        label = f"Predicted peak memory of one {self.per}"
        return memory_bar(sizes, label=label, study=self.study, prefix="what-if")

    @property
    def state(self) -> dict[str, Any]:
        """The positions of the controls, for the script that moves them."""
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


def page_of(
    predictor: Predictor, suggestion: Suggestion | None, values: Mapping[str, str]
) -> WhatIfPage:
    """The page of the configuration that an address names.

    Args:
        predictor: of the study.
        suggestion: its answer, if it has one.
        values: the address's; without any, the best configuration is shown.

    Raises:
        UsageError: an unknown knob, or a value that it cannot take; or no configuration is legal.
    """
    best = suggestion.best if suggestion else None
    moved = read_moved(predictor, best.settings if best else None, values)
    found = predictor.what_if(moved.settings)
    options = predictor.choices.options(moved.settings)
    knobs = predictor.choices.knobs
    other = best if best and best.settings != moved.settings else None
    per = rank_word(predictor.study.question)
    return WhatIfPage(
        study=predictor.study,
        best=best,
        found=found,
        moved=moved,
        controls=tuple(
            KnobControl(knob=one.knob, options=options[one.knob])
            for one in knobs
            if one.knob in options
        ),
        fixed=tuple(one for one in knobs if one.knob not in options and not one.follows),
        fit=fit_words(found),
        against=tuple(against_best(found, predictor.what_if(other.settings), per)) if other else (),
        measured=tuple((one, against_measured(one, other)) for one in found.seen),
        explanation=predictor.explain(moved.settings),
    )


def read_moved(predictor: Predictor, best: Settings | None, values: Mapping[str, str]) -> Moved:
    """The configuration that was chosen, or the legal one that is nearest, and what gave way.

    Raises:
        UsageError: an unknown knob, or a value that it cannot take.
    """
    choices = predictor.choices
    chosen = _chosen(predictor, values)
    if not chosen:
        if best is None or best not in choices:
            best = _first(predictor)
        return Moved(settings=best)
    text = values.get(BEFORE, "")
    before = parse_settings(text[:1000]) if text else None
    begun = before or best
    wanted = Settings.from_dict({**(begun.as_dict() if begun else {}), **chosen, ACCUMULATION: 1})
    # The knob that was moved is kept, and the others follow it.
    keep = next(iter(_differing(wanted, before)), "") if before else ""
    found = choices.nearest(wanted.as_dict(), keep=keep)
    return Moved(settings=found, notes=tuple(_gave_way(predictor, wanted, found)))


def _differing(one: Settings, other: Settings) -> list[str]:
    """Knobs in which two configurations differ; accumulation follows from the others."""
    return [k for k in KNOBS if k != ACCUMULATION and getattr(one, k) != getattr(other, k)]


def _first(predictor: Predictor) -> Settings:
    """The one to begin with where there is no answer: predicted to be the fastest that fits, as far
    as anything is known.
    """
    known = predictor.evidence.forecast
    found = next(iter((*known.fitting[:1], *known.timed[:1])), None)
    return found.settings if found else predictor.choices.legal[0]


def _chosen(predictor: Predictor, values: Mapping[str, str]) -> dict[str, Any]:
    """The knobs that an address names, but for accumulation."""
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


def _gave_way(predictor: Predictor, wanted: Settings, found: Settings) -> Iterator[str]:
    """The knobs that are otherwise than they were chosen, in sentences."""
    knobs = _differing(wanted, found)
    if not knobs:
        return
    try:
        collapsed = predictor.what_if(wanted, given=knobs).collapsed
    except UsageError as error:
        changes = ", ".join(f"{knob} to {show(getattr(found, knob))}" for knob in knobs)
        yield f"Moved along: {changes}. Otherwise it would not be legal: {error}."
    else:
        yield from (note.why for note in collapsed)


# -- words ------------------------------------------------------------------------------------


def fit_words(found: WhatIf) -> str:
    """The need beside the limit: ``Fits: 61.2 GiB of 75.7 GiB``."""
    need, limit = found.memory_gib, size_text(found.limit_gib * GIB)
    if found.fits is None or need.value is None:
        return "Not known to fit"
    if not found.fits:
        over = need.value - found.limit_gib
        if over <= 0:
            return "Does not run"
        return f"Does not fit: {size_text(over * GIB)} over the limit of {limit}"
    words = f"{size_text(need.value * GIB)} of {limit}"
    is_sure = need.high is not None and need.high <= found.limit_gib
    return f"Fits: {words}" if is_sure else f"Fits, but only just: {words}"


def against_best(found: WhatIf, best: WhatIf, per: str) -> Iterator[str]:
    """Differences from the best configuration in sentences, all of it as predicted."""
    changes = [
        f"{knob} {show(getattr(best.settings, knob))} → {show(getattr(found.settings, knob))}"
        for knob in KNOBS
        if getattr(found.settings, knob) != getattr(best.settings, knob)
    ]
    yield f"Changed: {', '.join(changes)}."
    speed = _faster(found.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
    if speed:
        theirs = speed_text(best.tokens_per_s_per_gpu.value)
        is_within = _is_within(found.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
        off = ", which is less than either may be off by" if is_within else ""
        yield (
            f"{speed} than the best settings are predicted to be"
            f" ({theirs} tokens/s per {per}){off}."
        )
    if found.memory_gib.value is not None and best.memory_gib.value is not None:
        theirs = size_text(best.memory_gib.value * GIB)
        difference_gib = found.memory_gib.value - best.memory_gib.value
        yield f"{_more(difference_gib)} the best settings are predicted to need ({theirs})."


def against_measured(seen: Evaluation, best: Candidate | None) -> str:
    """A measurement beside the best configuration; empty where that cannot be said."""
    if best is None or best.basis is not None or best.settings == seen.settings:
        return ""
    words = _faster(seen.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu)
    return f"{words} than the best" if words else ""


def _faster(one: Quantity, other: Quantity) -> str:
    """``4.0% faster``; empty where either is unknown."""
    if not one.value or not other.value:
        return ""
    ratio = one.value / other.value
    if abs(ratio - 1) < SAME:
        return "No faster and no slower"
    return f"{share_text(abs(ratio - 1))} {'faster' if ratio > 1 else 'slower'}"


def _more(difference_gib: float) -> str:
    """``As much memory as``, ``1.31 GiB more memory than``."""
    if abs(difference_gib * GIB) < 2**20:
        return "As much memory as"
    more = "more" if difference_gib > 0 else "less"
    return f"{size_text(abs(difference_gib) * GIB)} {more} memory than"


def _is_within(one: Quantity, other: Quantity) -> bool:
    """True where each lies in the other's interval, though they are not equal."""
    mine, theirs = interval_of(one), interval_of(other)
    if not mine or not theirs or abs(mine.value / theirs.value - 1) < SAME:
        return False
    return mine.low <= theirs.value <= mine.high and theirs.low <= mine.value <= theirs.high
