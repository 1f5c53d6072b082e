"""Finds what each knob does: the best known configuration of each of its values."""

from dataclasses import dataclass
from typing import Any

from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import Study
from tuner.explain.knobs import CHOSEN
from tuner.results.evidence import Evidence
from tuner.results.what_if import choices
from tuner.space.rules import show


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobValue:
    """The best known settings with one value of a knob; fields as of their evaluation."""

    value: Any
    shown: str
    settings: Settings | None
    """The fastest that fit with this value: of those that were probed if there are any, else as
    predicted. Where none fits, the ones that need least. ``None`` when nothing is known."""
    tokens_per_s_per_gpu: Quantity
    memory_gib: Quantity
    relative: float | None
    """Their speed over the answer's; ``None`` where either is unknown."""
    provenance: Provenance
    probes: tuple[int, ...]
    fits: bool | None
    is_best: bool
    differs: tuple[str, ...]
    """Other knobs in which they differ from the answer, accumulation apart, which follows."""
    note: str
    """What to know of it, in a few words: that nothing fits, or why nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """One knob that acts, and all of its values."""

    knob: str
    values: tuple[KnobValue, ...]


def knob_effects(
    study: Study, suggestion: Suggestion | None, evidence: Evidence | None = None
) -> tuple[KnobEffect, ...]:
    """Lists the values of each knob that acts and can be chosen (accumulation follows from the
    others).
    """
    evidence = evidence or Evidence(study)
    best = suggestion.best if suggestion else None
    probed = [*evidence.probed.get(study.limits.fidelity, {}).values()]
    known = {found.settings for found in probed}
    estimates = evidence.forecast.estimates
    predicted = [evidence.with_speed(f) for s, f in estimates.items() if s not in known]
    answer: list[Evaluation] = []
    if best is not None:
        seen, told = evidence.seen(best.settings)[:1], evidence.predicted(best.settings)
        answer = list(seen) if best.basis is None else [told] if told else []
    # What is known best of a value goes before the rest.
    pools = (answer, [f for f in probed if f.fits], [f for f in predicted if f.fits])
    rest = [f for f in (*probed, *predicted) if f.needed_gib.value]

    def best_with(knob: str, value: Any) -> Evaluation | None:
        for pool in pools:
            having = [f for f in pool if getattr(f.settings, knob) == value]
            if timed := [f for f in having if f.tokens_per_s_per_gpu.value]:
                return max(
                    timed, key=lambda f: (f.tokens_per_s_per_gpu.value or 0.0, str(f.settings))
                )
        return min(
            (f for f in rest if getattr(f.settings, knob) == value),
            key=lambda f: (f.fits is not True, f.needed_gib.value or 0.0, str(f.settings)),
            default=None,
        )

    no_speed = evidence.forecast.unknown or "no step was timed"
    return tuple(
        KnobEffect(
            knob=one.knob,
            values=tuple(
                _value(one.knob, value, best_with(one.knob, value), best, no_speed)
                for value in one.values
            ),
        )
        for one in choices(study).knobs
        if one.is_live
    )


def _value(
    knob: str, value: Any, found: Evaluation | None, best: Evaluation | None, no_speed: str
) -> KnobValue:
    speed = found.tokens_per_s_per_gpu if found and found.fits else UNKNOWN
    reference = best.tokens_per_s_per_gpu.value if best else None
    differs: tuple[str, ...] = ()
    if found and best:
        mine, theirs = best.settings, found.settings
        others = (name for name in CHOSEN if name != knob)
        differs = tuple(name for name in others if getattr(mine, name) != getattr(theirs, name))
    if found is None:
        note = "nothing is known of settings with it"
    elif found.fits is False:
        note = "nothing with it is known or expected to fit"
    elif found.fits is None:
        note = f"not known to run: its probe ended as {found.outcome}"
    else:
        note = "" if found.tokens_per_s_per_gpu.value else no_speed
    return KnobValue(
        value=value,
        shown=show(value),
        settings=found.settings if found else None,
        tokens_per_s_per_gpu=speed,
        memory_gib=found.needed_gib if found else UNKNOWN,
        relative=speed.value / reference if speed.value and reference else None,
        provenance=found.known_from if found else Provenance.UNKNOWN,
        probes=found.probe_ids if found else (),
        fits=found.fits if found else None,
        is_best=best is not None and getattr(best.settings, knob) == value,
        differs=differs,
        note=note,
    )
