"""What to probe next for its own sake: first a spread over the space, then TPE.

TPE sees the space as knobs and suggests a value for each; the suggestion is projected to the
nearest legal settings that were not tried. Settings that are not expected to fit come last.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, log2
from typing import Any

from tuner.planner.knowledge import Knowledge
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.tpe import Trial, is_size, suggest
from tuner.settings import KNOBS, Checkpointing, Settings

SAFE = 0.8
"""Part of the limit that the first probe is expected to need at most: the estimate errs."""

DOUBTFUL = 1.1
"""Expected need, in limits, up to which settings may yet fit. What needs more comes last."""

LAST_RESORTS = 2
"""Probes of settings that arithmetic says cannot fit, made only when nothing else is left."""

FEWEST_SPREAD, MOST_SPREAD, SPREAD_SHARE = 3, 8, 4
"""Probes that are spread before TPE takes over: one in four that may be spent, within bounds."""

SLOWER = 2.0
"""Guess for what was not timed: so many times the slowest that was."""

Place = tuple[Any, ...]
"""Settings as a point: a float from 0 to 1 for each size, the value itself for each choice."""


def propose(known: Knowledge) -> Settings | None:
    """The untried settings to probe next, or ``None`` when none are worth it."""
    outlook = MemoryOutlook(known)
    candidates = known.candidates()
    possible = [s for s in candidates if not outlook.cannot_fit(s)]
    if not possible:
        return _last_resort(known, outlook, candidates)
    tried = _tried(known)
    if not tried:
        return _first(known, outlook, possible)
    space = _Coordinates(known.space.legal)
    most = known.study.terms.max_probes // SPREAD_SHARE
    if len(tried) < min(MOST_SPREAD, max(FEWEST_SPREAD, most)):
        return _farthest(space, _likely(known, outlook, possible, (1.0, DOUBTFUL)), tried)
    return _suggested(known, outlook, space, _likely(known, outlook, possible, (DOUBTFUL,)))


def _likely(
    known: Knowledge, outlook: MemoryOutlook, possible: Sequence[Settings], limits: Sequence[float]
) -> Sequence[Settings]:
    """Candidates that are expected to need no more than the first of ``limits`` that leaves any."""
    expected = {s: outlook.expected_bytes(s) / known.limit_bytes for s in possible}
    for limit in limits:
        if likely := [s for s, needs in expected.items() if needs <= limit]:
            return likely
    return possible


def _last_resort(
    known: Knowledge, outlook: MemoryOutlook, candidates: Sequence[Settings]
) -> Settings | None:
    """The smallest of what cannot fit by arithmetic, while nothing is known to fit.

    One or two real probes say what would be needed, in case the arithmetic is wrong.
    """
    spent = sum(1 for s in known.repetitions if outlook.cannot_fit(s))
    if known.fitting or spent >= LAST_RESORTS:
        return None
    return min(candidates, key=lambda s: (outlook.floor_bytes(s), str(s)), default=None)


def _tried(known: Knowledge) -> list[Settings]:
    """Legal settings that taught something, in the space's order."""
    taught = {*known.findings, *known.too_large, *known.slow, *known.closed}
    return [s for s in known.space.legal if s in taught]


def _first(known: Knowledge, outlook: MemoryOutlook, possible: Sequence[Settings]) -> Settings:
    """The quickest-looking of the settings that are expected to fit with room to spare."""
    expected = {s: outlook.expected_bytes(s) for s in possible}
    safe = [s for s in possible if expected[s] <= SAFE * known.limit_bytes]
    if safe:
        return min(safe, key=_looks_slow)
    return min(possible, key=lambda s: (expected[s], str(s)))


def _farthest(
    space: "_Coordinates", candidates: Sequence[Settings], tried: Sequence[Settings]
) -> Settings:
    """The candidate that is least like any that was tried."""
    places = [space.place(s) for s in tried]

    def key(settings: Settings) -> tuple[Any, ...]:
        place = space.place(settings)
        return -min(_distance(place, other) for other in places), *_looks_slow(settings)

    return min(candidates, key=key)


def _suggested(
    known: Knowledge,
    outlook: MemoryOutlook,
    space: "_Coordinates",
    candidates: Sequence[Settings],
) -> Settings:
    """TPE's suggestion, or the candidate nearest to it."""
    study = known.study
    if not space.values:
        return candidates[0]
    # One fixed seed would suggest the same at every ask while little is known.
    seed = (study.seed + len(study.probes)) % 2**32
    wanted = suggest(space.values, _history(known, outlook, space), seed=seed)
    target = space.place_of(wanted)
    return min(candidates, key=lambda s: (_distance(space.place(s), target), *_looks_slow(s)))


def _history(known: Knowledge, outlook: MemoryOutlook, space: "_Coordinates") -> list[Trial]:
    """What probes have taught of speed and memory; other failures teach TPE nothing."""
    timed = {s: f.seconds for s, f in known.findings.items() if f.seconds < inf}
    slowest = max([*timed.values(), *known.slow.values()], default=1.0)
    trials = []
    for settings in _tried(known):
        if settings not in {*timed, *known.too_large, *known.slow}:
            continue
        overshoot = outlook.needed.get(settings, 0) / known.limit_bytes - 1
        if settings in known.too_large:
            overshoot = max(overshoot, 1e-3)
        trials.append(
            Trial(
                knobs={knob: getattr(settings, knob) for knob in space.values},
                seconds=timed.get(settings, SLOWER * slowest),
                overshoot=overshoot,
            )
        )
    return trials


def _looks_slow(settings: Settings) -> tuple[Any, ...]:
    """Orders settings by what usually costs speed; it picks the first, and breaks ties.

    What is still tied is taken in the space's order.

    Least model parallelism, then the largest micro-batch is the best of the simple orders on
    published sweeps.
    """
    return (
        settings.tp_size * settings.pp_size,
        settings.cpu_offload,
        settings.activation_checkpointing is not Checkpointing.NONE,
        settings.gradient_accumulation_steps,
        settings.tp_recompute_allgather,
    )


class _Coordinates:
    """The space as points: the knobs that have several values in it."""

    def __init__(self, legal: Sequence[Settings]) -> None:
        found = {knob: {getattr(s, knob) for s in legal} for knob in KNOBS if knob != _DERIVED}
        self.values: dict[str, list[Any]] = {
            knob: sorted(values) for knob, values in found.items() if len(values) > 1
        }

    @cached_property
    def _sizes(self) -> dict[str, tuple[float, float]]:
        """Logarithms of the smallest, and of the range, of each knob that is a size."""
        return {
            knob: (log2(values[0]), log2(values[-1] / values[0]))
            for knob, values in self.values.items()
            if is_size(values[0])
        }

    def place(self, settings: Settings) -> Place:
        """Where settings are."""
        return self.place_of({knob: getattr(settings, knob) for knob in self.values})

    def place_of(self, knobs: Mapping[str, Any]) -> Place:
        """Where values of the knobs are."""
        sizes = self._sizes
        return tuple(
            (log2(value) - sizes[knob][0]) / sizes[knob][1] if knob in sizes else value
            for knob, value in knobs.items()
        )


_DERIVED = "gradient_accumulation_steps"


def _distance(one: Place, other: Place) -> float:
    return sum(
        abs(a - b) if isinstance(a, float) else float(a != b)
        for a, b in zip(one, other, strict=True)
    )
