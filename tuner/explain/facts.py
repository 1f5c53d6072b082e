"""The evidence of an answer, as data: each fact is one sentence of the explanation.

A fact is made where what it says is found: its kind, its sentence, and the values that this is of.
Nothing is ever decided by its words. Here are those that several modules say, and what facts hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from tuner.core.answer import Awkward, Reason
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Change, Quantity
from tuner.core.study import Probe
from tuner.core.words import describe, probes_text, seconds_text
from tuner.explain.english import (
    basis_text,
    change_interval_text,
    effect_cells,
    ended_text,
    failure_text,
    few_text,
    most_text,
    ran_text,
    spared_text,
)
from tuner.serialization import plain


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known and worth saying."""

    kind: str
    text: str
    """The sentence."""
    values: Mapping[str, object]
    """What it is of."""

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {"kind": self.kind, **{name: _plain(value) for name, value in self.values.items()}}


def fact(kind: str, text: str, /, **values: object) -> Fact:
    return Fact(kind, text, values)


def _plain(value: object) -> Any:
    if isinstance(value, Evaluation):
        return {
            "settings": value.settings.as_dict(),
            "step_time_s": value.step_time_s.as_dict(),
            "needed_gib": value.needed_gib.as_dict(),
            "probes": list(value.probe_ids),
        }
    if isinstance(value, Settings | Quantity | Enum):
        return plain(value)
    if isinstance(value, Probe):
        return value.id
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


# -- what facts hold --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChange:
    """The effect of one other value of a knob: a row of the table of knobs."""

    knob: str
    value: Any
    instead_of: Any
    step: Change | None = None
    """``None`` where no time is known."""
    memory_bytes: float | None = None
    """By how much more it needs, or less; ``None`` where that is not known."""
    needed_bytes: float | None = None
    at_least: bool = False
    fits: bool = True
    trains: str = ""
    probes: tuple[int, ...] = ()
    """Where that is known from; none where it is predicted."""
    against: tuple[int, ...] = ()
    ended_early: bool = False
    of_answer: bool = True
    """It is of the answer, and not of another configuration."""
    pairs: int = 0
    configuration: Settings | None = None
    """The one with the other value; ``None`` where it is of several, or of another workload."""
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Another study as evidence."""

    id: str
    model: str
    cluster: str
    global_batch_size: int
    sequence_length: int
    optimizer: str
    reduce_dtype: str
    ran: tuple[tuple[int, Fidelity], ...]
    days: tuple[str, ...]
    versions: Mapping[str, str]

    def __str__(self) -> str:
        differs = f", {self.optimizer}" if self.optimizer else ""
        how = "as the framework does" if self.reduce_dtype == "framework" else ""
        how = how or f"in {self.reduce_dtype}"
        differs += f", gradients reduced {how}" if self.reduce_dtype else ""
        ran = " and ".join(f"{count} settings {fidelity}" for count, fidelity in self.ran)
        return (
            f"{self.id} ({self.model} on {self.cluster}, global batch"
            f" {self.global_batch_size}, sequence {self.sequence_length}{differs}:"
            f" {ran or 'nothing ran'} {ran_text(self.days, self.versions)})"
        )


# -- facts of several modules -----------------------------------------------------------------


_REASONS = {
    Reason.CHECKED: "that one's knobs were not seen to train what they should, and these were",
    Reason.SIMPLER: "the answer has fewer knobs off their default and needs no more memory",
}


def tied_with_fastest(
    fastest: Evaluation,
    spared_bytes: int,
    reason: Reason,
    *,
    change: Change | None,
    tolerance: float | None,
) -> Fact:
    """The answer is not the fastest, which it cannot be told from.

    Args:
        fastest: the fastest that fits.
        spared_bytes: by which the answer needs less.
        reason: why the answer goes before it.
        change: from the answer to the fastest; ``None`` of predictions.
        tolerance: within which they are tied; ``None`` where their intervals make them so.
    """
    why = _REASONS.get(reason, f"the answer needs {spared_text(spared_bytes)} memory")
    if change is None:
        text = (
            f"{describe(fastest.settings)} is as fast, within the tolerance, with"
            f" {seconds_text(fastest.seconds)} and {most_text(fastest)}; {why}."
        )
    else:
        tied = "cannot be told apart from"
        if tolerance is not None:
            tied = f"is within the tolerance ({tolerance:.1%}) of"
        text = (
            f"Its speed {tied} that of the fastest, {describe(fastest.settings)} with"
            f" {seconds_text(fastest.seconds)} ({change_interval_text(change)}) and"
            f" {most_text(fastest)} (probe {probes_text(fastest.probe_ids)}); {why}."
        )
    return fact(
        "tied_with_fastest",
        text,
        fastest=fastest,
        change=change,
        tolerance=tolerance,
        reason=reason,
        spared_bytes=spared_bytes,
    )


def next_best(second: Evaluation, change: Change | float, *, tolerance: float = 0.0) -> Fact:
    """The one that comes next; in time it is tied with the answer where no more than the
    ``tolerance`` is between them."""
    ratio = change.ratio if isinstance(change, Change) else change
    is_tied = ratio - 1 <= tolerance
    tied = f": a tie, within the tolerance ({tolerance:.1%})" if is_tied else ""
    where = f", {basis_text(second)}"
    if second.basis is None:
        where = f" (probe {probes_text(second.probe_ids)})"
    return fact(
        "next_best",
        f"Next comes {describe(second.settings)} with {seconds_text(second.seconds)}"
        f" ({change_interval_text(change)}) and {most_text(second)}{where}{tied}.",
        second=second,
        change=change,
        is_tied=is_tied,
    )


def batch_divides_badly(batch: Awkward) -> Fact:
    return fact(
        "awkward_batch",
        f"A global batch of {batch.global_batch_size} on {batch.gpus} GPUs costs"
        f" {batch.cost:.0%} of the speed, by arithmetic:"
        f" {' or '.join(map(str, batch.instead))} would not.",
        batch=batch,
    )


def knob_changes(kind: str, changes: Sequence[KnobChange], **more: object) -> Fact:
    """The effects of other values of knobs, which a table shows in the place of the sentence."""
    rows = (effect_cells(_plain(one)) for one in changes)
    told = "; ".join(f"{knob}: {step} {memory} ({seen})" for knob, step, memory, seen in rows)
    text = f"One knob changed, in step and memory: {told}."
    return fact(kind, text, changes=tuple(changes), **more)


def failed(probes: Sequence[Probe], fidelity: Fidelity, *, is_accident: bool = False) -> Fact:
    """Probes ended without a result; of a dry run's accident the next request tries it again."""
    if fidelity is not Fidelity.PREDICTED:
        ended = (ended_text(probe, describe(probe.request.settings)) for probe in probes)
        text = f"Without a result: {few_text(ended)}."
    else:
        how = "Unknown, because their dry run failed"
        if is_accident:
            how = (
                "By arithmetic, because their dry run had an accident, which the next request tries"
                " again"
            )
        text = f"{how}: {few_text(map(failure_text, probes))}."
    return fact("failed", text, probes=tuple(probes), fidelity=fidelity, is_accident=is_accident)


def study_ended(reason: str) -> Fact:
    return fact("study_ended", f"The study has ended: {reason}.", reason=reason)
