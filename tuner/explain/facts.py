"""The evidence of an answer, as data: each fact is one sentence of the explanation.

Numbers carry their units in their names. :mod:`tuner.explain.english` says the facts in words;
nothing is ever decided by those.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, dataclass_transform

from tuner.core.answer import Grounds, Reason
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Basis, Fidelity
from tuner.core.quantity import Change, Quantity
from tuner.core.study import Probe

T = TypeVar("T")


class Fact:
    """One thing that is known and worth saying."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: ``kind``, and the fact's own fields."""
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
    if isinstance(value, Settings | Quantity):
        return value.as_dict()
    if isinstance(value, Probe):
        return value.id
    if isinstance(value, Enum):
        return value.value
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


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fact(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots and keywords."""
    make: Callable[[type[T]], type[T]] = dataclass(frozen=True, slots=True, kw_only=True)
    return make(cls)


# -- an answer on probes ----------------------------------------------------------------------


@fact
class Chosen(Fact):
    """The answer's speed and memory."""

    best: Evaluation
    limit_bytes: float


@fact
class ScriptRan(Fact):
    """The user's script that ran, and how; nothing of the probe program's step."""

    path: str
    launch: str
    ranks: int
    memory: str


@fact
class TiedWithFastest(Fact):
    """The answer goes before one that is as fast, or faster."""

    fastest: Evaluation
    change: Change | None
    """From the answer to the fastest; ``None`` of predictions."""
    tolerance: float | None
    """Within which they are tied; ``None`` where their intervals make them so."""
    reason: Reason
    spared_bytes: int


@fact
class TiedWithOthers(Fact):
    """The answer is the fastest, and others cannot be told apart from it."""

    probes: tuple[int, ...]
    more: int
    lighter: float
    """Part of the memory by which one of them would have to be lighter."""


@fact
class NextBest(Fact):
    """The one that comes after the answer."""

    second: Evaluation
    change: Change | float


@fact
class NoOther(Fact):
    """Nothing else that fits was timed."""


@fact
class Extrapolated(Fact):
    """The answer's time is from shorter steps than its own."""

    ran: tuple[int, ...]
    count: int
    probes: tuple[int, ...]


@fact
class RunOut(Fact):
    """The answer's long steps were run too."""

    count: int
    probes: tuple[int, ...]


@fact
class AllocatorConfigured(Fact):
    """Torch's allocator was configured for the answer's probes."""

    conf: str


@fact
class ValueGroup:
    """Configurations that were timed with one value of a knob."""

    value: Any
    low_s: float
    high_s: float
    probes: tuple[int, ...]
    early: tuple[int, ...]


@fact
class OnlyKnob(Fact):
    """One knob's value alone decided what the steps of all probes took."""

    knob: str
    groups: tuple[ValueGroup, ...]
    without_effect: tuple[str, ...]
    """Knobs that differ between configurations of one value, and changed nothing."""
    confounded: tuple[str, ...]
    """Knobs of which the same could be said: no probe tells them apart."""


@fact
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


@fact
class KnobProbed(Fact):
    """The effect of another value of one knob, by a pair of probes that differ in it alone."""

    changes: tuple[KnobChange]


@fact
class KnobsExpected(Fact):
    """Effects that are expected where no pair of probes tells, the largest effect first."""

    changes: tuple[KnobChange, ...]
    grounds: Grounds
    others_are_known: bool


@fact
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


@fact
class RanOutOfMemory(Fact):
    """Probes that ran out of memory."""

    probes: tuple[Probe, ...]


@fact
class EndedEarly(Fact):
    """Probes that were stopped because they were slower than the fastest known could be."""

    probes: tuple[Probe, ...]
    seconds: tuple[float | None, ...]


@fact
class Failed(Fact):
    """Probes, or dry runs, that ended otherwise without a result."""

    probes: tuple[Probe, ...]
    fidelity: Fidelity
    is_accident: bool = False
    """A dry run whose end may be of the machine: the next request tries it again."""


@fact
class NotSuggested(Fact):
    """Configurations that train something else, or may well."""

    count: int
    example: Settings
    why: str
    probes: tuple[int, ...]


@fact
class MoreProbes(Fact):
    """The gain that a few more probes may have, and their cost."""

    count: int
    wall_s: float
    devices: int
    is_cpu: bool
    mean: float
    """Expected gain in speed, relative."""
    most: float
    grounds: Grounds
    next: Settings


@fact
class Untried(Fact):
    """Configurations that may fit and were not probed, while nothing is known to fit."""

    count: int
    grounds: Grounds
    next: Settings


@fact
class NothingLeft(Fact):
    """Nothing is left that may fit and was not probed."""


@fact
class StudyEnded(Fact):
    """Why the study has ended, as it was noted then."""

    reason: str


@fact
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


@fact
class OtherStudies(Fact):
    """Other studies whose probes correct what is expected."""

    studies: tuple[EarlierStudy, ...]


@fact
class Coverage(Fact):
    """How much of the space was probed."""

    probed: int
    legal: int
    probes_done: int


@fact
class RanOn(Fact):
    """When the answer's probes ran, and with what."""

    fidelity: Fidelity
    days: tuple[str, ...]
    versions: Mapping[str, str]


@fact
class AlsoProbed(Fact):
    """Probes of the same question at another fidelity."""

    fidelity: Fidelity
    count: int


@fact
class AlsoDryRun(Fact):
    """Layouts that were dry-run beside the probes."""

    count: int


@fact
class DryRunAgainstProbes(Fact):
    """The memory of the answer as its dry run predicts it."""

    predicted: Evaluation
    needed_bytes: int
    fidelity: Fidelity


@fact
class ProbesAgainstPrediction(Fact):
    """The fastest that was probed, beside what was predicted of it."""

    found: Evaluation
    predicted_s: float | None
    predicted_bytes: int


# -- an answer on predictions -----------------------------------------------------------------


@fact
class NothingProbed(Fact):
    """No probe is done yet, or none has given a result."""

    fidelity: Fidelity
    is_done: bool


@fact
class ProbedTrainsWrongly(Fact):
    """All that was probed and fits trains something else."""

    fidelity: Fidelity
    why: str


@fact
class NothingProbedFits(Fact):
    """No configuration that was probed was seen to fit."""

    limit_bytes: float


@fact
class SmallestNeed(Fact):
    """The one that needs least of the configurations that do not fit."""

    smallest: Evaluation
    limit_bytes: float


@fact
class GoOn(Fact):
    """How a study that has ended goes on."""

    options: tuple[str, ...]
    """Of the command line, that allow more; none where asking again is enough."""


@fact
class WhatFollows(Fact):
    """From here on all is predicted."""

    fidelity: Fidelity


@fact
class Predicted(Fact):
    """The answer as it is predicted."""

    best: Evaluation
    limit_bytes: float
    basis: Basis
    time_from: str


@fact
class TransferredFrom(Fact):
    """How near what other studies ran is to the answer."""

    near: float
    factor: float
    at_assumed_rates: bool


@fact
class MayNotFit(Fact):
    """At the upper end of its memory the answer would not fit."""

    limit_bytes: float


@fact
class Unverified(Fact):
    """A faster one by arithmetic, whose layout was not dry-run."""

    leader: Evaluation
    ratio: float


@fact
class Lighter(Fact):
    """One that spares much memory for a little speed."""

    least: Evaluation
    spared_bytes: int
    ratio: float


@fact
class MemoryPeak(Fact):
    """The categories that the memory goes to."""

    basis: Basis
    peak_bytes: float
    phase: str
    largest: Mapping[str, float]
    is_all: bool


@fact
class MemoryUnknown(Fact):
    """Nothing is predicted of a configuration's memory."""

    why: str


@fact
class ExpertsPadded(Fact):
    """FSDP2 pads packed experts, and what that takes."""

    experts: int
    ranks: int
    each: int
    held_bytes: float
    gathered_bytes: float


@fact
class KnobPredicted(Fact):
    """The effect of another value of a knob on the peak of memory."""

    changes: tuple[KnobChange]
    reason: str
    beside: str
    """Other knobs that change with it and matter, such as ``gradient_accumulation_steps=2``."""
    basis: Basis
    of_dry_run: bool


@fact
class OfDryRun(Fact):
    """A note on the figures of the answer's dry run."""

    note: str


@fact
class SpeedUnknown(Fact):
    """Some fit, but which is the fastest is not known."""

    fit: int
    legal: int
    limit_bytes: float
    why: str


@fact
class HowToKnowSpeed(Fact):
    """A way to a speed where none is predicted."""

    cluster: str
    is_cpu: bool
    missing: tuple[str, ...]
    precisions: tuple[str, ...]
    """Precisions whose matrix rate is known, where no other figure is missing."""
    is_listed: bool


@fact
class LargestListed(Fact):
    """Of each layout the largest micro-batch that fits is listed; the first of them."""

    first: Evaluation


@fact
class AllTrainWrongly(Fact):
    """All that is predicted to fit trains something else."""

    fit: int
    legal: int
    limit_bytes: float


@fact
class NothingPredicted(Fact):
    """Nothing is known of any configuration."""

    dry_runs_failed: bool


@fact
class NothingFits(Fact):
    """No legal configuration is predicted to fit."""

    legal: int
    limit_bytes: float


@fact
class Uncovered(Fact):
    """Configurations that the cost model does not cover."""

    count: int
    legal: int
    shardings: tuple[str, ...]
    why: str


@fact
class MeasuredRates(Fact):
    """The rates of devices and links are measured ones."""

    text: str


@fact
class NoDryRuns(Fact):
    """All numbers are arithmetic."""

    failed: bool
    why: str
    is_transferred: bool


@fact
class DryRunsMade(Fact):
    """The layouts that were dry-run."""

    probes: tuple[int, ...]
    layouts: int
    is_transferred: bool


@fact
class OtherVersions(Fact):
    """Dry runs were made with other versions than were stated."""

    ran: Mapping[str, str]
    asked: Mapping[str, str]


@fact
class Transferred(Fact):
    """Times that are corrected by what other studies measured."""

    count: int
    timed: int
    low: float
    high: float
    near: float
    at_assumed_rates: bool
    studies: tuple[EarlierStudy, ...]
