"""Finds what each knob does: the best known configuration of each of its values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import Study
from tuner.explain.knobs import CHOSEN
from tuner.results.choices import choices
from tuner.results.evidence import Evidence
from tuner.space.inactive import show


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobValue:
    """The best known settings with one value of a knob."""

    value: Any
    shown: str
    settings: Settings | None
    """The fastest that fit with this value: of those that were probed if there are any, else as
    predicted. Where none fits, the ones that need least. ``None`` when nothing is known."""
    tokens_per_s_per_gpu: Quantity
    """Their speed; unknown where they do not fit, or none is known."""
    memory_gib: Quantity
    """What must be free on a device; a lower bound where they ran out of memory."""
    relative: float | None
    """Their speed over the answer's; ``None`` where either is unknown."""
    provenance: Provenance
    """What stands behind the speed, or where that is unknown, the memory."""
    probes: tuple[int, ...]
    """Numbers of the probes that this is known from; of a prediction, its dry run."""
    fits: bool | None
    """Whether they fit; ``None`` when that is not known."""
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
    """One for each value that some legal settings have, in order; two or more."""


def knob_effects(
    study: Study, suggestion: Suggestion | None, evidence: Evidence | None = None
) -> tuple[KnobEffect, ...]:
    """Lists the values of each knob that acts and can be chosen (accumulation follows from the
    others).

    Args:
        study: with its probes.
        suggestion: its answer; ``None`` while there is none, and nothing to compare with.
        evidence: of the study, where others are made of it too.

    Raises:
        UsageError: the question has no legal settings.
    """
    evidence = evidence or Evidence(study)
    best = suggestion.best if suggestion else None
    pools = _Pools(evidence, best)
    return tuple(
        KnobEffect(
            knob=choice.knob,
            values=tuple(_value(pools, choice.knob, value, best) for value in choice.values),
        )
        for choice in choices(study).knobs
        if choice.is_live
    )


def _value(pools: "_Pools", knob: str, value: Any, best: Evaluation | None) -> KnobValue:
    found = pools.best_with(knob, value)
    speed = found.tokens_per_s_per_gpu if found and found.fits else UNKNOWN
    reference = best.tokens_per_s_per_gpu.value if best else None
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
        differs=_differs(found.settings, best.settings, knob) if found and best else (),
        note=pools.note(found),
    )


def _differs(one: Settings, other: Settings, but: str) -> tuple[str, ...]:
    return tuple(k for k in CHOSEN if k != but and getattr(one, k) != getattr(other, k))


class _Pools:
    """Settings by how much is known of them: what is known best of a value goes before the rest."""

    def __init__(self, evidence: Evidence, best: Evaluation | None) -> None:
        self._evidence = evidence
        asked = evidence.study.limits.fidelity
        probed = [*evidence.probed.get(asked, {}).values()]
        known = {found.settings for found in probed}
        predicted = [
            evidence.with_speed(found)
            for found in evidence.forecast.estimates.values()
            if found.settings not in known
        ]
        self._answer = self._of_answer(best)
        self._fast = [_fitting(probed), _fitting(predicted)]
        self._light = [found for found in (*probed, *predicted) if found.needed_gib.value]

    def best_with(self, knob: str, value: Any) -> Evaluation | None:
        """Finds the best known configuration with a value of a knob: the answer itself, if it has
        this value.
        """
        pools = [self._answer, *self._fast]
        for pool in pools:
            timed = [
                f
                for f in pool
                if getattr(f.settings, knob) == value and f.tokens_per_s_per_gpu.value
            ]
            if timed:
                return max(
                    timed, key=lambda f: (f.tokens_per_s_per_gpu.value or 0.0, str(f.settings))
                )
        light = [f for f in self._light if getattr(f.settings, knob) == value]
        return min(light, key=_by_need, default=None)

    def note(self, found: Evaluation | None) -> str:
        """Note on the value."""
        if found is None:
            return "nothing is known of settings with it"
        if found.fits is False:
            return "nothing with it is known or expected to fit"
        if found.fits is None:
            return f"not known to run: its probe ended as {found.outcome}"
        return (
            ""
            if found.tokens_per_s_per_gpu.value
            else self._evidence.forecast.unknown or "no step was timed"
        )

    def _of_answer(self, best: Evaluation | None) -> list[Evaluation]:
        if best is None:
            return []
        if best.basis is None:
            return list(self._evidence.seen(best.settings)[:1])
        found = self._evidence.predicted(best.settings)
        return [found] if found else []


def _fitting(pool: Iterable[Evaluation]) -> list[Evaluation]:
    return [found for found in pool if found.fits]


def _by_need(found: Evaluation) -> tuple[bool, float, str]:
    """Orders by fit first, then by need."""
    return found.fits is not True, found.needed_gib.value or 0.0, str(found.settings)
