"""The probes of a study as rows of a table: one for each settings, repetitions pooled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tuner.measurement import RAN, Measurement, Outcome
from tuner.planner import speed_of, step_time
from tuner.planner.repricing import repriced
from tuner.quantity import Quantity
from tuner.settings import KNOBS, Settings
from tuner.study import Probe, ProbeState, Question, Study

ALWAYS = ("sharding", "micro_batch_size", "gradient_accumulation_steps")
"""Knobs that are shown even where there is nothing to compare them with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the probes of one settings have shown so far."""

    ids: tuple[int, ...]
    """Its probes; explanations name them."""
    settings: Settings
    """What was tried."""
    outcome: str
    """``ok`` if any probe was, else the latest outcome, else the state of one that is pending."""
    needed_bytes: int | None
    """Memory of the rank that needs most, with what is outside the allocator."""
    at_least: bool
    """Whether ``needed_bytes`` is a lower bound, because memory ran out there."""
    step_time: Quantity
    """Seconds of one optimizer step."""
    speed: Quantity
    """Tokens of the global batch per second of its step and GPU."""
    detail: str
    """What went wrong, for people."""

    @property
    def ran(self) -> bool:
        """Whether steps were done and timed, be it few of them."""
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
