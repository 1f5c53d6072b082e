"""The what-if page: the need and speed of any configuration of a study, beside its best."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from api.pages.charts import OUTSIDE, interval_of, memory_bar
from api.pages.render import render_part, settings_path, settings_words
from tuner.core.answer import Suggestion
from tuner.core.configuration import KNOBS, Settings, knob_value, parse_settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import Quantity
from tuner.core.words import rank_word, share_text, speed_text
from tuner.errors import UsageError
from tuner.results.what_if import Predictor
from tuner.text import show, size_text

# Relative difference below which two figures are called equal.
SAME = 0.0005
ACCUMULATION = "gradient_accumulation_steps"
# Field of the settings that were shown before, which tells what was moved.
BEFORE = "from"
# Before a knob's name: the number of a value, which is all that a slider sends by itself.
AT = "at."
# Values of a number up to which they stand side by side; more are a slider.
MOST_SEGMENTS = 3


class Moved(NamedTuple):
    """The legal configuration that a choice led to."""

    settings: Settings
    notes: tuple[str, ...] = ()
    """The knobs that gave way, and why; nothing where all is as it was chosen."""


def page_of(
    predictor: Predictor, suggestion: Suggestion | None, values: Mapping[str, str]
) -> SimpleNamespace:
    """The page of the configuration that an address names; without values, of the best one."""
    study, best = predictor.study, suggestion.best if suggestion else None
    moved = read_moved(predictor, best.settings if best else None, values)
    answered = predictor.what_if(moved.settings)
    found = answered.predicted
    options = predictor.choices.options(moved.settings)
    knobs = predictor.choices.knobs
    other = best if best and best.settings != moved.settings else None
    per = rank_word(study.question)
    need, why, fit = found.needed_bytes.value, found.why, fit_words(found)
    is_said = found.fits is False and need is not None and need > found.limit_bytes
    sizes = dict(found.breakdown)
    if sizes and found.outside_bytes > 0:
        sizes[OUTSIDE] = found.outside_bytes
    bar = memory_bar(sizes, study, f"Predicted memory of one {per} at the peak") if sizes else None
    speed = found.tokens_per_s_per_gpu.value
    rate = f"{speed_text(speed)} tokens/s per {per}" if speed else "speed unknown"
    controls = []
    for name in (one.knob for one in knobs if one.knob in options):
        knob, values_of = KNOBS[name], options[name]
        shown = [one.shown for one in values_of]
        controls.append(
            SimpleNamespace(
                knob=name,
                about=knob.label,
                id=f"k-{name.replace('_', '-')}",
                options=values_of,
                shown=shown,
                at=next(n for n, one in enumerate(values_of) if one.is_current),
                is_slider=knob.kind is int and len(values_of) > MOST_SEGMENTS,
            )
        )

    def measured_words(seen: Evaluation) -> str:
        """A measurement beside the best configuration; empty where that cannot be said."""
        if other is None or other.basis is not None or other.settings == seen.settings:
            return ""
        words = _faster(seen.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu)
        return f"{words} than the best" if words else ""

    return SimpleNamespace(
        study=study,
        best=best,
        found=found,
        provenance=answered.provenance,
        notes=answered.notes,
        moved=moved,
        controls=controls,
        fixed=tuple(one for one in knobs if one.knob not in options and not one.follows),
        fit=fit,
        why="" if is_said else f"{why[:1].upper()}{why[1:]}",
        against=tuple(against_best(found, predictor.what_if(other.settings).predicted, per))
        if other
        else (),
        measured=tuple((one, measured_words(one)) for one in answered.seen),
        explanation=predictor.explain(moved.settings),
        bar=bar,
        per=per,
        words=settings_words(found.settings),
        is_best=best is not None and best.settings == found.settings,
        path=settings_path(study.id, found.settings),
        best_path=settings_path(study.id, best.settings) if best else "",
        summary=f"{rate} · {fit}",
    )


def changes(page: SimpleNamespace) -> dict[str, Any]:
    """The parts of a page that depend on its configuration, for the script that moves the knobs."""
    return {
        "html": render_part("what_if_result.html", page=page),
        "path": page.path,
        "from": str(page.found.settings),
        "said": ". ".join((*page.moved.notes, page.summary)),
        "summary": page.summary,
        "controls": {
            control.knob: {
                "at": control.at,
                "options": [
                    {"text": text, "why": option.why_not}
                    for option, text in zip(control.options, control.shown, strict=True)
                ],
            }
            for control in page.controls
        },
    }


def read_moved(predictor: Predictor, best: Settings | None, values: Mapping[str, str]) -> Moved:
    """The configuration that was chosen, or the legal one that is nearest, and what gave way."""
    choices = predictor.choices
    chosen = _chosen(predictor, values)
    if not chosen:
        if best is None or best not in choices:
            # Where there is no answer: the fastest that fits as far as anything is known.
            known = predictor.evidence.forecast
            found = next(iter((*known.fitting[:1], *known.timed[:1])), None)
            best = found.settings if found else choices.legal[0]
        return Moved(settings=best)
    text = values.get(BEFORE, "")
    before = parse_settings(text[:1000]) if text else None
    begun = before or best
    wanted = Settings.from_dict({**(begun.as_dict() if begun else {}), **chosen, ACCUMULATION: 1})
    # The knob that was moved is kept, and the others follow it.
    keep = next(iter(_differing(wanted, before)), "") if before else ""
    nearest = choices.nearest(wanted.as_dict(), keep=keep)
    knobs = _differing(wanted, nearest)
    notes: tuple[str, ...] = ()
    if knobs:
        try:
            notes = tuple(note.why for note in predictor.what_if(wanted, given=knobs).collapsed)
        except UsageError as error:
            moves = ", ".join(f"{knob} to {show(getattr(nearest, knob))}" for knob in knobs)
            notes = (f"Moved along: {moves}. Otherwise it would not be legal: {error}.",)
    return Moved(settings=nearest, notes=notes)


def _differing(one: Settings, other: Settings) -> list[str]:
    """Knobs in which two configurations differ; accumulation follows from the others."""
    return [k for k in KNOBS if k != ACCUMULATION and getattr(one, k) != getattr(other, k)]


def _chosen(predictor: Predictor, values: Mapping[str, str]) -> dict[str, Any]:
    """The knobs that an address names, but for accumulation."""
    chosen: dict[str, Any] = {}
    for choice in predictor.choices.knobs:
        if choice.knob in values:
            chosen[choice.knob] = knob_value(choice.knob, values[choice.knob])
        if (at := values.get(AT + choice.knob)) is not None:
            last = len(choice.values) - 1
            if not (at.isascii() and at.isdecimal() and len(at) < 5 and int(at) <= last):
                allowed = f"must be the number of one of its values, up to {last}"
                raise UsageError(AT + choice.knob, at, allowed)
            chosen[choice.knob] = choice.values[int(at)]
    for name in values:
        if name.removeprefix(AT) not in KNOBS and name != BEFORE:
            known = ", ".join(KNOBS)
            raise UsageError(name[:80], values[name], f"no such knob; the knobs are {known}")
    chosen.pop(ACCUMULATION, None)
    return chosen


# -- words ------------------------------------------------------------------------------------


def fit_words(found: Evaluation) -> str:
    """The need beside the limit: ``Fits: 61.2 GiB of 75.7 GiB``."""
    need, limit = found.needed_bytes, size_text(found.limit_bytes)
    if found.fits is None or need.value is None:
        return "Not known to fit"
    if not found.fits:
        over = need.value - found.limit_bytes
        if over <= 0:
            return "Does not run"
        return f"Does not fit: {size_text(over)} over the limit of {limit}"
    words = f"{size_text(need.value)} of {limit}"
    is_sure = need.high is not None and need.high <= found.limit_bytes
    return f"Fits: {words}" if is_sure else f"Fits, but only just: {words}"


def against_best(found: Evaluation, best: Evaluation, per: str) -> Iterator[str]:
    """Differences from the best configuration in sentences, all of it as predicted."""
    changes = [
        f"{knob} {show(getattr(best.settings, knob))} → {show(getattr(found.settings, knob))}"
        for knob in KNOBS
        if getattr(found.settings, knob) != getattr(best.settings, knob)
    ]
    yield f"Changed: {', '.join(changes)}."
    mine, theirs = (interval_of(one.tokens_per_s_per_gpu) for one in (found, best))
    if speed := _faster(found.tokens_per_s_per_gpu, best.tokens_per_s_per_gpu):
        is_within = (
            mine is not None
            and theirs is not None
            and abs(mine.value / theirs.value - 1) >= SAME
            and mine.low <= theirs.value <= mine.high
            and theirs.low <= mine.value <= theirs.high
        )
        off = ", which is less than either may be off by" if is_within else ""
        rate = f"{speed_text(best.tokens_per_s_per_gpu.value)} tokens/s per {per}"
        yield f"{speed} than the best settings are predicted to be ({rate}){off}."
    if found.needed_bytes.value is not None and best.needed_bytes.value is not None:
        difference = found.needed_bytes.value - best.needed_bytes.value
        more = "more" if difference > 0 else "less"
        than = f"{size_text(abs(difference))} {more} memory than"
        words = "As much memory as" if abs(difference) < 2**20 else than
        need = size_text(best.needed_bytes.value)
        yield f"{words} the best settings are predicted to need ({need})."


def _faster(one: Quantity, other: Quantity) -> str:
    """``4.0% faster``; empty where either is unknown."""
    if not one.value or not other.value:
        return ""
    ratio = one.value / other.value
    if abs(ratio - 1) < SAME:
        return "No faster and no slower"
    return f"{share_text(abs(ratio - 1))} {'faster' if ratio > 1 else 'slower'}"
