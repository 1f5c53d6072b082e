"""Checks whether a configuration trains what one process trains, and keeps the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from typing import Any, NamedTuple

from tuner.core.measurement import Measurement, Outcome
from tuner.core.workload import Precision
from tuner.guard.counts import caused, counted, difference, inactive_knob
from tuner.guard.replica import GUARD_FORMAT, STEPS, Replica
from tuner.plain import Plain
from tuner.space.rules import show


class CheckState(StrEnum):
    """States of knowledge about a configuration's training."""

    PASSED = "passed"  # they train what one process trains
    FAILED = "failed"  # they do not, or a knob does not act
    NOT_CHECKED = "not_checked"  # nothing was trained, or it could not be judged


# Largest relative difference of a loss or gradient norm from the reference's.
#
# In fp32 agreement is within 5e-7, and faults were 7e-4 and more. The largest that were seen of the
# classes of two ranks (three shardings with gradients put off and not, tensor parallelism with
# recomputation and not; torch 2.13, accelerate 1.15, transformers 5.23, on a CPU):
#
# replica of              fp32     bf16     bf16_mixed
# tinyllama-1.1b, AdamW   1.7e-07  1.0e-03  1.2e-03
# mixtral-8x7b, AdamW     2.0e-07  2.2e-03  1.3e-03
# tinyllama-1.1b, SGD     1.6e-07  5.4e-04  7.5e-04
# mixtral-8x7b, SGD       9.8e-08  1.3e-03  1.8e-03
#
# Against a reference that accumulated as the replicas do it was 3.7e-3 at most. So bf16 shows
# faults of casting, and of other kinds the large ones only: fp32 decides. Under SGD the faults of
# buffers that the tests plant are off by 0.2 and more.
TOLERANCE: Mapping[Precision, float] = {
    Precision.FP32: 1e-5,
    Precision.BF16: 1e-2,
    Precision.BF16_MIXED: 1e-2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far a replica is from its reference."""

    relative: float  # of the worst loss or gradient norm of the step
    quantity: str  # ``loss`` or ``gradient norm``
    step: int  # optimizer step, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCheck(Plain):
    """Result of training a replica."""

    form = GUARD_FORMAT

    key: str  # of the replica in these versions (:meth:`tuner.guard.replica.Replica.key`)
    family: str  # of the model's structure and versions (:func:`tuner.guard.replica.family_of`)
    ruling: CheckState  # the check
    outcome: Outcome
    """Of the replica, as a probe has one: ``ok``, ``wrong_result``, ``knob_inactive``, ..."""
    model_type: str = ""  # the architecture, as transformers spells it
    detail: str = ""
    """Why it failed, or was not judged; or what is odd about one that passed. One line."""
    structure: str = ""  # what was trained, in words
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The replica's (``Settings.as_dict``)."""
    ranks: int = 1  # that trained
    precision: str = ""
    """Number format of the replica; empty of a probe, whose counts do not depend on it."""
    knob: str = ""  # the knob that is to blame by what was counted; empty where counts show none
    program: str = ""  # what was run, as :attr:`tuner.core.study.Question.program` has it
    study: str = ""  # the study whose probe it is of, in the place of a replica
    worst: float | None = None
    """The largest relative difference of all compared steps; ``None`` where none was compared."""
    versions: Mapping[str, str] = field(default_factory=dict)  # of the stack that trained
    notes: tuple[str, ...] = ()  # what the replica leaves out
    date: str | None = None  # when it was kept, UTC in ISO 8601


class Judgement(NamedTuple):
    """Outcome of a replica's training, with the reason."""

    outcome: Outcome  # as of a probe
    detail: str = ""  # why, in one line
    knob: str = ""  # the knob that is to blame by what was counted; empty where counts show none


def judge(replica: Replica, found: Measurement, reference: Measurement) -> Judgement:
    """The outcome of a replica, and why.

    Collectives that differ from the list and that no other value of a knob explains are told and
    fail nothing: a release may communicate otherwise and train the same.

    ``found`` is what its ranks found, ``reference`` what one process found.
    """
    if found.outcome is not Outcome.OK:
        return Judgement(found.outcome, found.detail)
    workload, settings, cluster = replica.workload, replica.settings, replica.cluster
    if inactive := inactive_knob(workload, settings, cluster, found):
        detail = f"{inactive.knob} acts as {show(inactive.value)}: {inactive.why}"
        return Judgement(Outcome.KNOB_INACTIVE, detail, inactive.knob)
    other = difference(caused(workload, settings, cluster), counted(found.collectives))
    tolerance = TOLERANCE[workload.precision]
    # the worst of the first step that differs by more than the tolerance
    apart = (step for step in deviations(found, reference) if step.relative > tolerance)
    worst = next(apart, None)
    if worst is None:
        why = f"it communicates otherwise than is priced: {other}" if other else ""
        return Judgement(Outcome.OK, why)
    return Judgement(
        Outcome.WRONG_RESULT,
        f"{worst.quantity} of optimizer step {worst.step} is off by {worst.relative:.1e} of one"
        f" process's, {tolerance:.0e} at most",
    )


def deviations(found: Measurement, reference: Measurement) -> list[Deviation]:
    """The worst difference of each compared optimizer step, in order."""

    def relative(found: Sequence[float], wanted: Sequence[float]) -> list[float]:
        """Relative differences of the compared steps; infinite where there is no number."""
        got = list(found[:STEPS]) + [inf] * (STEPS - len(found))
        pairs = zip(got, wanted[:STEPS], strict=True)
        return [abs(a - b) / abs(b) if b and isfinite(a) else inf for a, b in pairs]

    losses = relative(found.losses, reference.losses)
    norms = relative(found.gradient_norms, reference.gradient_norms)
    return [
        Deviation(
            relative=max(loss, norm), quantity="loss" if loss >= norm else "gradient norm", step=i
        )
        for i, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]


def check_state_of(outcome: Outcome) -> CheckState:
    """Derives the ruling from an outcome; accidents say nothing."""
    if outcome is Outcome.OK:
        return CheckState.PASSED
    wrong = (Outcome.WRONG_RESULT, Outcome.KNOB_INACTIVE, Outcome.NON_FINITE)
    return CheckState.FAILED if outcome in wrong else CheckState.NOT_CHECKED
