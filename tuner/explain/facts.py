"""The evidence of an answer, as data: each fact is one sentence of the explanation.

Here are those of an answer on probes, and in :mod:`tuner.explain.predicted` those of one on
predictions. ``str(fact)`` is the sentence; nothing is ever decided by its words.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, dataclass_transform

from tuner.core.answer import Awkward, Grounds, Reason
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Change, Quantity
from tuner.core.study import Probe
from tuner.core.words import (
    describe,
    listed,
    probes_text,
    rough_duration_text,
    seconds_text,
    share_text,
)
from tuner.explain.english import (
    change_interval_text,
    ended_text,
    failure_text,
    few_probes_text,
    few_text,
    grounds_text,
    most_text,
    phrased,
    ran_text,
    spared_text,
)
from tuner.plain import plain
from tuner.text import count_text, show, size_text


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Fact:
    """One thing that is known and worth saying; each kind is a frozen dataclass."""

    says: ClassVar[str] = ""
    """Its sentence, with fields in braces, and behind a colon how a value is said
    (:func:`tuner.explain.english.phrased`); kinds that need more write ``__str__`` themselves."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __str__(self) -> str:
        return phrased(self.says, {**vars(self), "self": self})

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


# Gain in speed below which none is expected.
NOTHING = 0.001
# What one would launch without tuning, in short.
RULE = (
    "the least model parallelism, then the fewest knobs off their default, then the largest"
    " micro-batch, of what is expected to fit"
)
_REASONS = {
    Reason.CHECKED: "that one's knobs were not seen to train what they should, and these were",
    Reason.SIMPLER: "the answer has fewer knobs off their default and needs no more memory",
}


class Chosen(Fact):
    says = """{best.settings:settings} takes {best.seconds:seconds} for an optimizer step
    ({best.step_time_s:interval}) and needs {best.most_bytes:size} of {limit_bytes:size} on one
    device (probe {best.probe_ids:probes}; {best:provenances})."""

    best: Evaluation
    limit_bytes: float


class ScriptRan(Fact):
    says = """What ran is {path}, through {launch} on {ranks} ranks; its memory is the {memory},
    and its step the time from one report to the next, with loading data."""

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

    def __str__(self) -> str:
        fastest = self.fastest
        reason = _REASONS.get(
            self.reason, f"the answer needs {spared_text(self.spared_bytes)} memory"
        )
        if self.change is None:
            return (
                f"{describe(fastest.settings)} is as fast, within the tolerance, with"
                f" {seconds_text(fastest.seconds)} and {most_text(fastest)}; {reason}."
            )
        tied = "cannot be told apart from"
        if self.tolerance is not None:
            tied = f"is within the tolerance ({self.tolerance:.1%}) of"
        return (
            f"Its speed {tied} that of the fastest, {describe(fastest.settings)} with"
            f" {seconds_text(fastest.seconds)} ({change_interval_text(self.change)}) and"
            f" {most_text(fastest)} (probe {probes_text(fastest.probe_ids)}); {reason}."
        )


class TiedWithOthers(Fact):
    says = """Its speed cannot be told apart from that of {probes:probes}{more:and more}, none of
    which is lighter by {lighter:.0%} or more."""

    probes: tuple[int, ...]
    more: int
    lighter: float
    """Part of the memory by which one of them would have to be lighter."""


class NextBest(Fact):
    says = """Next comes {second.settings:settings} with {second.seconds:seconds}
    ({change:change interval}) and {second:need}{second:where}."""

    second: Evaluation
    change: Change | float


class NoOther(Fact):
    says = "No other settings that fit were timed."


class AwkwardBatch(Fact):
    says = """A global batch of {batch.global_batch_size} on {batch.gpus} GPUs costs
    {batch.cost:.0%} of the speed, by arithmetic: {batch.instead:or} would not."""

    batch: Awkward


class Extrapolated(Fact):
    says = """Its step time is extrapolated from steps of {ran:and} micro-batches to {count}
    (probe {probes:probes})."""

    ran: tuple[int, ...]
    count: int
    probes: tuple[int, ...]


class RunOut(Fact):
    says = "Steps of all its {count} micro-batches were run (probe {probes:probes})."

    count: int
    probes: tuple[int, ...]


class AllocatorConfigured(Fact):
    says = "Its probes ran with PYTORCH_ALLOC_CONF={conf}: launch with the same."

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

    def __str__(self) -> str:
        def group(one: ValueGroup) -> str:
            ends = dict.fromkeys((seconds_text(one.low_s), seconds_text(one.high_s)))
            probes = few_probes_text(one.probes)
            probes += f"; {few_probes_text(one.early)} ended early" if one.early else ""
            value = f"{self.knob}={show(one.value)}"
            return f"a step takes {' to '.join(ends)} with {value} (probe {probes})"

        return (
            f"Of what was probed, only {' or '.join((self.knob, *self.confounded))} changed the"
            f" speed: {'; '.join(map(group, self.groups))}. Those of the same {self.knob} cannot be"
            f" told apart, though they differ in {listed(self.without_effect)}."
        )


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

    says = "One knob changed, in step and memory: {self:effects}."

    changes: tuple[KnobChange]


class KnobsExpected(Fact):
    """Effects that are expected where no pair of probes tells, the largest effect first."""

    says = KnobProbed.says

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

    def __str__(self) -> str:
        took, change = rough_duration_text(self.wall_s), self.change
        took += f" and {self.device_s:,.0f} device-seconds" if self.device_s else ""
        rule = f"the rule of thumb ({RULE})"
        if change is None:
            return f"Tuning took {took}, and confirms {rule}."
        source = grounds_text(self.grounds) if self.grounds else f"probe {probes_text(self.probes)}"
        against = f"{rule}, {describe(self.rule)}, takes {seconds_text(self.rule_s)} for a step"
        source += ", ended early" * self.ended_early
        against = f"{against} ({change_interval_text(change)}; {source})"
        if change.ratio <= 1:
            return f"Tuning took {took}, and has saved no time: {against}."
        ends = (ratio - 1 for ratio in (change.ratio, change.high, change.low))
        value, soonest, latest = (
            rough_duration_text(self.wall_s / gain) if gain > 0 else "never" for gain in ends
        )
        earned = f"earned back after {value} of training ({soonest} to {latest})"
        return f"Tuning took {took}, {earned}: {against}."


class RanOutOfMemory(Fact):
    probes: tuple[Probe, ...]

    def __str__(self) -> str:
        def one(probe: Probe) -> str:
            oom = probe.measurement.oom if probe.measurement else None
            where = (
                f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
            )
            return f"{describe(probe.request.settings)}{where} (probe #{probe.id})"

        return f"Out of memory: {few_text(map(one, self.probes))}."


class EndedEarly(Fact):
    probes: tuple[Probe, ...]
    seconds: tuple[float | None, ...]

    def __str__(self) -> str:
        def one(probe: Probe, seconds: float | None) -> str:
            taken = "" if seconds is None else f", about {seconds_text(seconds)} for a step"
            return f"{describe(probe.request.settings)}{taken} (probe #{probe.id})"

        named = few_text(map(one, self.probes, self.seconds))
        return f"Ended early, slower than the fastest could be: {named}."


class Failed(Fact):
    probes: tuple[Probe, ...]
    fidelity: Fidelity
    is_accident: bool = False
    """A dry run whose end may be of the machine: the next request tries it again."""

    def __str__(self) -> str:
        if self.fidelity != "predicted":
            ended = (ended_text(probe, describe(probe.request.settings)) for probe in self.probes)
            return f"Without a result: {few_text(ended)}."
        named = few_text(map(failure_text, self.probes))
        if self.is_accident:
            return (
                "By arithmetic, because their dry run had an accident, which the next request tries"
                f" again: {named}."
            )
        return f"Unknown, because their dry run failed: {named}."


class NotSuggested(Fact):
    says = "{count} settings such as {example:settings} are not suggested: {why}."

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

    def __str__(self) -> str:
        if self.most < NOTHING:
            gain = f"are expected to gain nothing (less than {share_text(NOTHING)})"
        else:
            gain = (
                f"could gain up to {share_text(self.most)} in speed ({share_text(self.mean)} on"
                " average) over the fastest known"
            )
        devices = count_text(self.devices, "CPU rank" if self.is_cpu else "GPU")
        return (
            f"{self.count} more {'probe' if self.count == 1 else 'probes'}, about"
            f" {rough_duration_text(self.wall_s)} on {devices}, {gain},"
            f" {grounds_text(self.grounds)}; the first would be {describe(self.next)}."
        )


class Untried(Fact):
    says = """{count} settings that may fit, {grounds:grounds}, were not probed; the next would
    be {next:settings}."""

    count: int
    grounds: Grounds
    next: Settings


class NothingLeft(Fact):
    says = "Nothing is left that may fit and was not probed: more probes cannot gain."


class StudyEnded(Fact):
    says = "The study has ended: {reason}."

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


class OtherStudies(Fact):
    says = (
        """Other studies' probes are those of {studies:studies} on such devices: {studies:few}."""
    )

    studies: tuple[EarlierStudy, ...]


class Coverage(Fact):
    says = "{probed} of the {legal} legal settings were probed, in {probes_done:count probe}."

    probed: int
    legal: int
    probes_done: int


class RanOn(Fact):
    says = "This was {fidelity} {self:ran}."

    fidelity: Fidelity
    days: tuple[str, ...]
    versions: Mapping[str, str]


class AlsoProbed(Fact):
    says = """{count:count probe} of this question {fidelity} too; --fidelity {fidelity} answers
    from these."""

    fidelity: Fidelity
    count: int


class AlsoDryRun(Fact):
    says = (
        """{count:count layout} {count:was} dry-run too; --fidelity predicted answers from these."""
    )

    count: int


class DryRunAgainstProbes(Fact):
    says = """Of {predicted.settings:settings} a dry run predicts {predicted.expected_bytes:size}
    (probe {predicted.probe_ids:probes}); {fidelity} are {needed_bytes:size}."""

    predicted: Evaluation
    needed_bytes: int
    fidelity: Fidelity


class ProbesAgainstPrediction(Fact):
    found: Evaluation
    predicted_s: float | None
    predicted_bytes: int

    def __str__(self) -> str:
        found = self.found
        time = "no time" if self.predicted_s is None else seconds_text(self.predicted_s)
        return (
            f"The fastest {found.fidelity} that fits, {describe(found.settings)}, took"
            f" {seconds_text(found.seconds)} and needed {size_text(found.most_bytes)} (probe"
            f" {probes_text(found.probe_ids)}); without it, {time} and"
            f" {size_text(self.predicted_bytes)} are predicted of it."
        )
