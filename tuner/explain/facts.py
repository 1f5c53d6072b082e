"""The evidence of an answer, as data: each fact is one sentence of the explanation.

Each kind's template in :mod:`tuner.explain.english` says what it means; nothing is ever decided by
those words.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, dataclass_transform

from tuner.core.answer import Awkward, Grounds, Reason
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Basis, Fidelity
from tuner.core.packing import PackingVariant
from tuner.core.quantity import Change, Quantity
from tuner.core.study import Probe
from tuner.plain import plain


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Fact:
    """One thing that is known and worth saying; each kind is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def as_dict(self) -> dict[str, Any]:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        values = _plain(self)
        assert isinstance(values, dict)
        return {"kind": kind, **values}


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


def probes_in(value: object) -> set[int]:
    """The numbers of all probes that a fact names, of its plain values."""
    if isinstance(value, Mapping):
        found = [probes_in(item) for name, item in value.items() if name not in _NUMBERS]
        named = [one for name in _NUMBERS for one in _listed(value.get(name))]
        return set().union(named, *found)
    return set().union(*map(probes_in, value)) if isinstance(value, list) else set()


_NUMBERS = ("probes", "against", "early")


def _listed(value: object) -> list[int]:
    return [one for one in value if isinstance(one, int)] if isinstance(value, list) else []


# -- an answer on probes ----------------------------------------------------------------------


class Chosen(Fact):
    best: Evaluation
    limit_bytes: float


class ScriptRan(Fact):
    path: str
    launch: str
    ranks: int
    memory: str


class TiedWithFastest(Fact):
    fastest: Evaluation
    change: Change | None
    """From the answer to the fastest; ``None`` of predictions."""
    tolerance: float | None
    """Within which they are tied; ``None`` where their intervals make them so."""
    reason: Reason
    spared_bytes: int


class TiedWithOthers(Fact):
    """The answer is the fastest, and others cannot be told apart from it."""

    probes: tuple[int, ...]
    more: int
    lighter: float
    """Part of the memory by which one of them would have to be lighter."""


class NextBest(Fact):
    second: Evaluation
    change: Change | float


class NoOther(Fact):
    """Nothing else that fits was timed."""


class AwkwardBatch(Fact):
    """The global batch costs speed that one near it would not, by arithmetic."""

    batch: Awkward


class Extrapolated(Fact):
    ran: tuple[int, ...]
    count: int
    probes: tuple[int, ...]


class RunOut(Fact):
    count: int
    probes: tuple[int, ...]


class AllocatorConfigured(Fact):
    conf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGroup:
    """Configurations that were timed with one value of a knob."""

    value: Any
    low_s: float
    high_s: float
    probes: tuple[int, ...]
    early: tuple[int, ...]


class OnlyKnob(Fact):
    """One knob's value alone decided what the steps of all probes took."""

    knob: str
    groups: tuple[ValueGroup, ...]
    without_effect: tuple[str, ...]
    """Knobs that differ between configurations of one value, and changed nothing."""
    confounded: tuple[str, ...]
    """Knobs of which the same could be said: no probe tells them apart."""


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


class KnobProbed(Fact):
    """The effect of another value of one knob, by a pair of probes that differ in it alone."""

    changes: tuple[KnobChange]


class KnobsExpected(Fact):
    """Effects that are expected where no pair of probes tells, the largest effect first."""

    changes: tuple[KnobChange, ...]
    grounds: Grounds
    others_are_known: bool


class TuningPaid(Fact):
    """The cost of the tuning, and a rule of thumb against which it pays for itself."""

    wall_s: float
    device_s: float
    step_s: float
    rule: Settings
    rule_s: float
    change: Change | None
    """From the answer to it; ``None`` where it is the answer."""
    probes: tuple[int, ...]
    grounds: Grounds | None
    ended_early: bool


class RanOutOfMemory(Fact):
    probes: tuple[Probe, ...]


class EndedEarly(Fact):
    probes: tuple[Probe, ...]
    seconds: tuple[float | None, ...]


class Failed(Fact):
    probes: tuple[Probe, ...]
    fidelity: Fidelity
    is_accident: bool = False
    """A dry run whose end may be of the machine: the next request tries it again."""


class NotSuggested(Fact):
    count: int
    example: Settings
    why: str
    probes: tuple[int, ...]


class MoreProbes(Fact):
    count: int
    wall_s: float
    devices: int
    is_cpu: bool
    mean: float
    """Expected gain in speed, relative."""
    most: float
    grounds: Grounds
    next: Settings


class Untried(Fact):
    count: int
    grounds: Grounds
    next: Settings


class NothingLeft(Fact):
    """Nothing is left that may fit and was not probed."""


class StudyEnded(Fact):
    reason: str


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


class OtherStudies(Fact):
    studies: tuple[EarlierStudy, ...]


class Coverage(Fact):
    probed: int
    legal: int
    probes_done: int


class RanOn(Fact):
    fidelity: Fidelity
    days: tuple[str, ...]
    versions: Mapping[str, str]


class AlsoProbed(Fact):
    fidelity: Fidelity
    count: int


class AlsoDryRun(Fact):
    count: int


class DryRunAgainstProbes(Fact):
    predicted: Evaluation
    needed_bytes: int
    fidelity: Fidelity


class ProbesAgainstPrediction(Fact):
    found: Evaluation
    predicted_s: float | None
    predicted_bytes: int


# -- an answer on predictions -----------------------------------------------------------------


class NothingProbed(Fact):
    fidelity: Fidelity
    is_done: bool
    last: str = ""  # how the last probe failed, with its detail


class ProbedTrainsWrongly(Fact):
    fidelity: Fidelity
    why: str


class NothingProbedFits(Fact):
    limit_bytes: float


class SmallestNeed(Fact):
    smallest: Evaluation
    limit_bytes: float


class GoOn(Fact):
    options: tuple[str, ...]
    """Of the command line, that allow more; none where asking again is enough."""


class WhatFollows(Fact):
    fidelity: Fidelity


class Predicted(Fact):
    best: Evaluation
    limit_bytes: float
    basis: Basis
    time_from: str


class Rehearsed(Fact):
    """Memory of some settings is what torch's allocator counted where no GPU was."""

    count: int
    probes: tuple[int, ...]
    world_size: int
    outside_bytes: float
    """Context and communicators, at most: they are assumed."""


class TimesOfBuiltIn(Fact):
    """Times beside a script's rehearsed memory are of the built-in step."""

    path: str
    model: str


class TransferredFrom(Fact):
    near: float
    factor: float
    at_assumed_rates: bool


class MayNotFit(Fact):
    limit_bytes: float


class Unverified(Fact):
    leader: Evaluation
    ratio: float


class Lighter(Fact):
    least: Evaluation
    spared_bytes: int
    ratio: float


class MemoryPeak(Fact):
    basis: Basis
    peak_bytes: float
    phase: str
    largest: Mapping[str, float]
    is_all: bool


class MemoryUnknown(Fact):
    why: str


class ExpertsPadded(Fact):
    experts: int
    ranks: int
    each: int
    held_bytes: float
    gathered_bytes: float


class InputsOnHost(Fact):
    """Inputs of layers wait for backward in pinned host memory."""

    rank_bytes: float
    pinned_bytes: int
    """Of a rank, with what torch rounds each input up by."""
    ranks: int
    """That share the memory of a node."""


class DocumentsTaken(Fact):
    """What documents a sequence is taken for."""

    variant: PackingVariant
    are_said: bool
    sequence_length: int
    row: tuple[int, ...]
    """Tokens of each."""
    tokens_per_s_per_gpu: Quantity
    useful_tokens_per_s_per_gpu: Quantity
    """Without padding."""


class AdapterTrained(Fact):
    """An adapter's parameters have gradients alone."""

    trained: int
    parameters: int
    """Of the model and the adapter."""


class KnobPredicted(Fact):
    """The effect of another value of a knob on the peak of memory."""

    changes: tuple[KnobChange]
    reason: str
    beside: str
    """Other knobs that change with it and matter, such as ``gradient_accumulation_steps=2``."""
    basis: Basis
    of_dry_run: bool


class OfDryRun(Fact):
    note: str


class OfDryRunsAlone(Fact):
    """The model's type is known by dry runs alone."""


class SpeedUnknown(Fact):
    fit: int
    legal: int
    limit_bytes: float
    why: str
    how: str = "are predicted"


class HowToKnowSpeed(Fact):
    cluster: str
    is_cpu: bool
    missing: tuple[str, ...]
    precisions: tuple[str, ...]
    """Precisions whose matrix rate is known, where no other figure is missing."""
    is_listed: bool


class LargestListed(Fact):
    first: Evaluation


class AllTrainWrongly(Fact):
    fit: int
    legal: int
    limit_bytes: float


class NothingPredicted(Fact):
    dry_runs_failed: bool


class NothingFits(Fact):
    legal: int
    limit_bytes: float


class Uncovered(Fact):
    count: int
    legal: int
    shardings: tuple[str, ...]
    why: str


class MeasuredRates(Fact):
    text: str


class NoDryRuns(Fact):
    failed: bool
    why: str
    is_transferred: bool


class DryRunsMade(Fact):
    probes: tuple[int, ...]
    layouts: int
    is_transferred: bool


class OtherVersions(Fact):
    ran: Mapping[str, str]
    asked: Mapping[str, str]


class Transferred(Fact):
    count: int
    timed: int
    low: float
    high: float
    near: float
    at_assumed_rates: bool
    studies: tuple[EarlierStudy, ...]
