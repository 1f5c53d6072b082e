"""What is known of each settings as a point: memory, speed, and what stands behind them."""

from dataclasses import dataclass
from enum import StrEnum

from tuner.measurement import Fidelity, Outcome
from tuner.planner.words import describe
from tuner.quantity import Provenance, Quantity
from tuner.results.evidence import Evidence
from tuner.results.figures import Figures, failed_figures
from tuner.settings import Settings
from tuner.study import Study
from tuner.suggestion import Candidate, Suggestion


class PointKind(StrEnum):
    """How settings stand to the limit."""

    FITS = "fits"  # they need no more than the limit
    OVER_LIMIT = "over_limit"  # they need more: their steps ran, or it is predicted
    OOM = "oom"  # they ran out of memory: they need at least this
    OTHER = "other"  # they ended otherwise; memory and speed are known or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One settings that was probed, or that the answer names."""

    settings: Settings
    """What they are."""
    words: str
    """The same, as people read it: what matters of it."""
    memory_gib: Quantity
    """What must be free on the device that needs most: what is compared with the limit. Of ``oom``
    a lower bound. Allocated, and what lies outside the allocator."""
    allocated_gib: Quantity
    """Peak of allocated tensors, as the answer tells it; unknown of ``oom``."""
    tokens_per_s_per_gpu: Quantity
    """Tokens per second and rank; unknown where no step was timed or predicted."""
    step_time_s: Quantity
    """Seconds of an optimizer step."""
    kind: PointKind
    """How they stand to the limit."""
    provenance: Provenance
    """The weakest of memory's and speed's; of neither, how they were run."""
    probes: tuple[int, ...]
    """Numbers of the probes that this is known from, oldest first; of a prediction, its dry run."""
    outcome: Outcome | None
    """How the last of them ended that says something; ``None`` of a prediction."""
    on_front: bool
    """Whether no other that fits is better in both memory and speed."""
    is_best: bool
    """Whether they are the answer."""
    overshoot_gib: float | None
    """By how much they exceed the limit, at least; ``None`` where they do not, or it is unknown."""
    detail: str
    """What happened, in one line; empty where all went well."""


def points(
    study: Study, suggestion: Suggestion | None, evidence: Evidence | None = None
) -> tuple[Point, ...]:
    """One for each settings that was probed, or that the answer names: the answer first, then the
    others, those of the highest speed first.

    What the answer says of settings goes before what else is known of them.

    Args:
        study: with its probes.
        suggestion: its answer; ``None`` while there is none.
        evidence: of the study, where others are made of it too.

    Raises:
        UsageError: the question has no legal settings.
    """
    evidence = evidence or Evidence(study)
    named = _named(suggestion)
    front = {one.settings for one in suggestion.pareto} if suggestion else set()
    best = suggestion.best.settings if suggestion and suggestion.best else None
    found = {**_dry_run(evidence), **_probed(evidence)}
    found |= {one.settings: of for one in named if (of := _of_answer(evidence, one))}
    made = [_point(of, on_front=s in front, is_best=s == best) for s, of in found.items()]
    return tuple(sorted(made, key=_order))


def _named(suggestion: Suggestion | None) -> tuple[Candidate, ...]:
    """What an answer names."""
    if suggestion is None:
        return ()
    best = (suggestion.best,) if suggestion.best else ()
    return (*suggestion.pareto, *suggestion.alternatives, *best)


def _probed(evidence: Evidence) -> dict[Settings, Figures]:
    """What was measured or emulated, at the fidelity that is asked for before others."""
    found: dict[Settings, Figures] = {}
    for of_fidelity in reversed(list(evidence.probed.values())):
        found |= of_fidelity
    return found


def _dry_run(evidence: Evidence) -> dict[Settings, Figures]:
    """What was dry-run: by its forecast, or how the dry run ended where there is none."""
    found = {}
    for probe in evidence.study.at(Fidelity.PREDICTED).probes:
        settings = probe.request.settings
        if probe.measurement is not None:
            found[settings] = evidence.predicted(settings) or failed_figures(probe)
    return found


def _of_answer(evidence: Evidence, named: Candidate) -> Figures | None:
    """What settings are known for that an answer names; ``None`` where it knows more than is
    known of the study, as when it was asked again meanwhile."""
    if named.basis is not None:
        return evidence.predicted(named.settings)
    return next(iter(evidence.seen(named.settings)), None)


def _point(found: Figures, *, on_front: bool, is_best: bool) -> Point:
    return Point(
        settings=found.settings,
        words=describe(found.settings),
        memory_gib=found.memory_gib,
        allocated_gib=found.allocated_gib,
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
        step_time_s=found.step_time_s,
        kind=_kind(found),
        provenance=found.provenance,
        probes=found.probes,
        outcome=found.outcome,
        on_front=on_front,
        is_best=is_best,
        overshoot_gib=found.overshoot_gib,
        detail=found.detail,
    )


def _kind(found: Figures) -> PointKind:
    if found.is_over_limit:
        return PointKind.OOM if found.outcome is Outcome.OOM else PointKind.OVER_LIMIT
    return PointKind.FITS if found.fits else PointKind.OTHER


def _order(point: Point) -> tuple[bool, float, str]:
    """The answer first, then by speed, the highest first; without one at the end."""
    return not point.is_best, -(point.tokens_per_s_per_gpu.value or 0.0), str(point.settings)
