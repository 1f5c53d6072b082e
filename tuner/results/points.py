"""Places each configuration as a point: memory, speed, and what they rest on."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from tuner.core.answer import Suggestion
from tuner.core.configuration import KNOBS, Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import (
    BROKEN,
    CLOSES_CLASS,
    RAN,
    TRAINS_WRONGLY,
    Fidelity,
    Measurement,
    Outcome,
)
from tuner.core.quantity import Provenance, Quantity
from tuner.core.study import Probe, ProbeState, Question, Study
from tuner.core.words import describe, speed_text
from tuner.guard.counts import blamed_by_counts
from tuner.planner.probes import fits, repriced, step_time_of
from tuner.planner.spending import measured_so_far
from tuner.planner.timing import speed_of, step_time
from tuner.planner.wrong import wrong_of
from tuner.results.evidence import Evidence, failed
from tuner.text import size_text


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
    words: str
    memory_gib: Quantity
    """What must be free on the device that needs most: what is compared with the limit. Of ``oom``
    a lower bound. Allocated, and what lies outside the allocator."""
    allocated_gib: Quantity
    """Peak of allocated tensors, as the answer tells it; unknown of ``oom``."""
    tokens_per_s_per_gpu: Quantity
    """Tokens per second and rank; unknown where no step was timed or predicted."""
    step_time_s: Quantity
    kind: PointKind
    provenance: Provenance
    """The weakest of memory's and speed's; of neither, how they were run."""
    probes: tuple[int, ...]
    """Numbers of the probes that this is known from, oldest first; of a prediction, its dry run."""
    outcome: Outcome | None
    """How the last of them ended that says something; ``None`` of a prediction."""
    on_front: bool
    """Whether no other that fits is better in both memory and speed."""
    is_best: bool
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


def _named(suggestion: Suggestion | None) -> tuple[Evaluation, ...]:
    """Lists the configurations that an answer names."""
    if suggestion is None:
        return ()
    best = (suggestion.best,) if suggestion.best else ()
    return (*suggestion.pareto, *suggestion.alternatives, *best)


def _probed(evidence: Evidence) -> dict[Settings, Evaluation]:
    """Lists what was measured or emulated, at the requested fidelity before others."""
    found: dict[Settings, Evaluation] = {}
    for of_fidelity in reversed(list(evidence.probed.values())):
        found |= of_fidelity
    return found


def _dry_run(evidence: Evidence) -> dict[Settings, Evaluation]:
    """Lists what was dry-run: by its forecast, or how the dry run ended where there is none."""
    found = {}
    for probe in evidence.study.at(Fidelity.PREDICTED).probes:
        settings = probe.request.settings
        if probe.measurement is not None:
            found[settings] = evidence.predicted(settings) or failed(probe)
    return found


def _of_answer(evidence: Evidence, named: Evaluation) -> Evaluation | None:
    """Makes the figures that an answer has of a configuration; ``None`` where it knows more than
    the study does, as when it was requested again meanwhile.
    """
    if named.basis is not None:
        return evidence.predicted(named.settings)
    return next(iter(evidence.seen(named.settings)), None)


def _point(found: Evaluation, *, on_front: bool, is_best: bool) -> Point:
    return Point(
        settings=found.settings,
        words=describe(found.settings),
        memory_gib=found.needed_gib,
        allocated_gib=found.allocated_gib,
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu,
        step_time_s=found.step_time_s,
        kind=_kind(found),
        provenance=found.known_from,
        probes=found.probe_ids,
        outcome=found.outcome,
        on_front=on_front,
        is_best=is_best,
        overshoot_gib=found.overshoot_gib,
        detail="" if found.basis and found.fits else found.why,
    )


def _kind(found: Evaluation) -> PointKind:
    if found.too_large:
        return PointKind.OOM if found.outcome is Outcome.OOM else PointKind.OVER_LIMIT
    return PointKind.FITS if found.fits else PointKind.OTHER


def _order(point: Point) -> tuple[bool, float, str]:
    """The answer first, then by speed, the highest first; without one at the end."""
    return not point.is_best, -(point.tokens_per_s_per_gpu.value or 0.0), str(point.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """One probe that has ended."""

    number: int
    probe_id: int
    settings: Settings
    words: str
    fidelity: Fidelity
    outcome: Outcome
    fits: bool | None
    """Whether it fits on the study's limits; ``None`` when that is not known."""
    tokens_per_s_per_gpu: Quantity
    """Its own speed; unknown where no step was timed."""
    best: float | None
    """Tokens per second and rank of the fastest that was known to fit then, from all probes of its
    settings up to then; ``None`` before there was one. A repetition may lower it."""
    is_best: bool
    wall_s: float
    """Seconds that probes had taken by then; those in which several ran count once."""
    device_s: float


def progress(study: Study) -> tuple[BestSoFar, ...]:
    """The probes of the fidelity that is asked for, in the order in which they ended."""
    study = repriced(study.at(study.limits.fidelity))
    done = [(probe, probe.measurement) for probe in study.in_order if probe.measurement]
    fastest = _Fastest(study)
    spent = measured_so_far(probe for probe, _ in done)
    return tuple(
        _step(fastest, number, probe, found, taken)
        for number, ((probe, found), taken) in enumerate(zip(done, spent, strict=True), start=1)
    )


def _step(
    fastest: "_Fastest",
    number: int,
    probe: Probe,
    found: Measurement,
    taken: tuple[float, float],
) -> BestSoFar:
    study, settings = fastest.study, probe.request.settings
    speed = speed_of(step_time_of(study, probe, found), study.question)
    is_best = fastest.add(probe, found, speed)
    wall_s, device_s = taken
    return BestSoFar(
        number=number,
        probe_id=probe.id,
        settings=settings,
        words=describe(settings),
        fidelity=probe.request.fidelity,
        outcome=found.outcome,
        fits=fits(study, found),
        tokens_per_s_per_gpu=speed,
        best=fastest.speed,
        is_best=is_best,
        wall_s=wall_s,
        device_s=device_s,
    )


class _Fastest:
    """The fastest settings that are known to fit, while probes are told one after the other."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._probes: dict[Settings, list[Probe]] = defaultdict(list)
        self._speeds: dict[Settings, float] = {}
        self._closed: set[Settings] = set()
        self._closed_classes: set[Settings] = set()
        self._wrong: frozenset[Settings] = frozenset()
        self._told: list[Probe] = []
        self.speed: float | None = None
        """Tokens per second and rank; ``None`` where nothing is known to fit."""

    def add(self, probe: Probe, found: Measurement, own: Quantity) -> bool:
        """Tells of a probe, and of its own speed; whether its settings are the fastest now."""
        settings = probe.request.settings
        self._told.append(probe)
        if found.outcome in TRAINS_WRONGLY or self._wrong:  # another layout may open it again
            self._look_for_wrong()
        ranks = self.study.question.cluster.world_size
        if found.outcome in CLOSES_CLASS and not blamed_by_counts(settings, ranks, found):
            self._closed_classes.add(settings.settings_class)
        elif found.outcome in BROKEN:
            self._closed.add(settings)
        self._forget_closed()
        self._probes[settings].append(probe)
        speed = self._speed_of(settings, own)
        before = self._speeds.pop(settings, None)
        if before is not None and before == self.speed:  # what it was may have been the fastest
            self.speed = max(self._speeds.values(), default=None)
        if speed is None:
            return False
        self._speeds[settings] = speed
        self.speed = speed if self.speed is None else max(speed, self.speed)
        return speed == self.speed

    def _look_for_wrong(self) -> None:
        """Looks for what the probes so far have shown to train something else."""
        known = replace(self.study, probes=tuple(self._told), guards={})
        tried = {probe.request.settings for probe in self.study.probes}
        self._wrong = frozenset(wrong_of(known, tried))

    def _forget_closed(self) -> None:
        """Drops the configurations that fall with a closed value or layout."""
        if closed := [one for one in self._speeds if self._is_closed(one)]:
            for one in closed:
                del self._speeds[one]
            self.speed = max(self._speeds.values(), default=None)

    def _is_closed(self, settings: Settings) -> bool:
        closed = settings in self._closed or settings in self._wrong
        return closed or settings.settings_class in self._closed_classes

    def _speed_of(self, settings: Settings, own: Quantity) -> float | None:
        """Speed from all probes of a configuration together, as the answer has it; ``None`` of what
        does not fit or run.
        """
        found = [probe.measurement for probe in self._probes[settings] if probe.measurement]
        ended = [one for one in found if one.outcome is Outcome.OK]
        if not ended or self._is_closed(settings):
            return None
        if any(fits(self.study, one) is False for one in found):
            return None
        if len(found) == 1 or not ended[-1].step_times_s:
            return own.value
        time = step_time(ended, settings.gradient_accumulation_steps)
        return speed_of(time, self.study.question).value


# Knobs that are shown even where there is nothing to compare them with.
ALWAYS = ("sharding", "micro_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results so far of the probes of one configuration."""

    ids: tuple[int, ...]
    settings: Settings
    outcome: str
    """``ok`` if any probe was, else the latest outcome, else the state of one that is pending."""
    needed_bytes: int | None
    """Memory of the rank that needs most, with what is outside the allocator."""
    at_least: bool
    """Whether ``needed_bytes`` is a lower bound, because memory ran out there."""
    step_time: Quantity
    speed: Quantity
    """Tokens of the global batch per second of its step and GPU."""
    detail: str

    @property
    def ran(self) -> bool:
        """Tells whether steps were done and timed, be it few of them."""
        return self.outcome in RAN


def rows_of(study: Study) -> tuple[Row, ...]:
    """One row for each settings, in the order of probing."""
    by_settings: dict[Settings, list[Probe]] = {}
    for probe in repriced(study).probes:
        by_settings.setdefault(probe.request.settings, []).append(probe)
    return tuple(_row(s, probes, study.question) for s, probes in by_settings.items())


def fastest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows with a speed by speed, then the others in the order of probing."""
    return tuple(sorted(rows, key=lambda row: -(row.speed.value or 0.0)))


# A table is made again after every probe, of much the same settings.
@lru_cache(maxsize=4096)
def knob_texts(settings: Settings) -> Mapping[str, str]:
    """Each knob's value as a word; ``-`` where it has no meaning."""
    texts = {name: _text(value) for name, value in settings.as_dict().items()}
    if settings.gradient_accumulation_steps == 1:
        texts["sync_each_batch"] = "-"
    if settings.tp_size == 1:
        texts["tp_recompute_allgather"] = "-"
    return texts


def differing(settings: Sequence[Settings]) -> tuple[str, ...]:
    """Knobs that do not have one value in all of ``settings``.

    Of a single one, those that say most: batch sizes, sharding, and knobs off their default.
    """
    texts = [knob_texts(one) for one in settings]
    if len(set(settings)) == 1:
        return tuple(k for k in KNOBS if k in ALWAYS or texts[0][k] not in ("-", _DEFAULTS[k]))
    return tuple(name for name in KNOBS if len({one[name] for one in texts} - {"-"}) > 1)


def _row(settings: Settings, probes: Sequence[Probe], question: Question) -> Row:
    done = [p.measurement for p in probes if p.state is ProbeState.DONE and p.measurement]
    good = [m for m in done if m.outcome is Outcome.OK]
    timed = good or [m for m in done if m.outcome in RAN]
    shown = timed or done[-1:]
    time = step_time(timed, settings.gradient_accumulation_steps)
    memory, at_least = _memory(shown)
    return Row(
        ids=tuple(probe.id for probe in probes),
        settings=settings,
        outcome=str(shown[-1].outcome) if shown else str(probes[-1].state),
        needed_bytes=memory,
        at_least=at_least,
        step_time=time,
        speed=speed_of(time, question),
        detail=shown[-1].detail if shown else "",
    )


def _memory(measurements: Sequence[Measurement]) -> tuple[int | None, bool]:
    known = [m.memory for m in measurements if m.memory]
    if known:
        return max(m.allocated_bytes + m.overhead_bytes for m in known), False
    short = [m.oom.needed_bytes for m in measurements if m.oom]
    return (max(short), True) if short else (None, False)


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


_DEFAULTS = {name: _text(value) for name, value in Settings().as_dict().items()}


def question_text(question: Question) -> str:
    """``stories15m on cpu:2 (torch), global batch 8, sequence 128, adamw, bf16``.

    Optimizer and precision of a user's script are its own, and not known.
    """
    workload = question.workload
    known = f", {workload.optimizer}, {workload.precision}" if question.script is None else ""
    return (
        f"{question.trained} on {question.cluster.name} ({question.framework.name}),"
        f" global batch {workload.global_batch_size}, sequence {workload.sequence_length}{known}"
    )


def row_text(row: Row, per: str) -> str:
    """Says what probes have shown: ``ok, 612 MiB, 1,243 tokens/s per GPU``."""
    parts = [row.outcome]
    if row.needed_bytes is not None:
        parts.append(f"{'more than ' if row.at_least else ''}{size_text(row.needed_bytes)}")
    if row.speed.value is not None:
        parts.append(f"{speed_text(row.speed.value)} tokens/s per {per}")
    elif row.detail and not row.at_least:
        parts.append(row.detail)
    return ", ".join(parts)
