"""Machines that contradict themselves, and what a plan must respect whatever they say.

What is ruled out is derived here from the probes alone, not from what the planner has made of them.
"""

import random
from dataclasses import dataclass, replace
from math import exp, isfinite

from tests.unit.planner.conftest import done, make_ok, make_oom
from tuner.core.configuration import Checkpointing
from tuner.core.measurement import CLOSES_CLASS, RAN, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.cost.memory.step import memory_bound
from tuner.planner import Stop, Wait, next_probe

ENDS = frozenset({Outcome.HOST_OOM, Outcome.NON_FINITE, Outcome.CRASHED, Outcome.TIMEOUT})
"""Outcomes after which settings are not tried again."""


@dataclass(kw_only=True)
class Rough:
    """Times and needs that have little to do with the settings, or with what they were before.

    Deterministic: what is drawn comes from the seed, the settings and the repetition.
    """

    study: Study
    seed: int
    trouble: float = 0.25
    """Part of the probes that end otherwise than well."""
    contradicts: float = 1.0
    """Standard deviation of the logarithm of both times and needs, at every run."""
    shrinks: bool = False
    """Whether the need falls where it should grow with the micro-batch size."""

    def run(self, request, limit_bytes):
        """The probe's measurement."""
        settings = request.settings
        draw = random.Random(f"{self.seed} {settings} {request.repetition}")
        if draw.random() < self.trouble:
            outcome = draw.choice([o for o in Outcome if o not in RAN and o is not Outcome.OOM])
            return Measurement(outcome=outcome, wall_s=draw.uniform(0, 600), device_s=1.0)
        need = int(self._need_bytes(settings) * exp(self.contradicts * draw.gauss(0, 0.3)))
        if need > limit_bytes and draw.random() < 0.7:  # the rest is only seen to need more
            return make_oom(max(limit_bytes + 1, need // 2), limit_bytes)
        counts = request.accumulation_counts or (settings.gradient_accumulation_steps,)
        seconds = exp(self.contradicts * draw.gauss(0, 1))
        times = {n: self._steps(draw, n * seconds) for n in counts}
        found = make_ok(times, need, overhead=draw.choice([0, 2**20]))
        stopped = request.repetition == 0 and draw.random() < 0.1
        return replace(found, outcome=Outcome.STOPPED_EARLY) if stopped else found

    def _need_bytes(self, settings):
        question = self.study.question
        if self.shrinks:
            settings = replace(settings, micro_batch_size=max(1, 64 // settings.micro_batch_size))
        return memory_bound(question.workload, settings, question.cluster).total_bytes

    def _steps(self, draw, seconds):
        spread = draw.choice([0.0, 0.01, 1.0])
        return tuple(seconds * exp(spread * draw.gauss(0, 1)) for _ in range(draw.randint(1, 10)))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A probe that was asked for."""

    before: Study
    """The study then, with the probes that were on their way."""
    request: ProbeRequest
    """Which."""

    @property
    def pending(self):
        """The probes that were on their way."""
        return tuple(p for p in self.before.probes if p.state is not ProbeState.DONE)

    @property
    def is_repetition(self):
        """Whether the settings had ended well already."""
        return any(
            p.request.settings == self.request.settings
            and p.measurement is not None
            and p.measurement.outcome is Outcome.OK
            for p in self.before.probes
        )


def play_at_once(study, run, at_once, draw, most=500):
    """Ask and measure, with several probes on their way, which end in any order."""
    limit = study.limits.limit_bytes(study.question.cluster)
    asked = []
    for _ in range(2 * most):
        pending = [p for p in study.probes if p.state is not ProbeState.DONE]
        step = next_probe(study, beside=True) if len(pending) < at_once else Wait()
        if isinstance(step, Stop):
            assert not pending
            return study, step, asked
        if isinstance(step, ProbeRequest):
            asked.append(Asked(before=study, request=step))
            state = draw.choice([ProbeState.QUEUED, ProbeState.RUNNING])
            added = Probe(
                id=len(study.probes) + 1, request=step, state=state, memory_limit_bytes=limit
            )
            study = replace(study, probes=(*study.probes, added))
            continue
        assert pending
        ended = draw.choice(pending)
        found = done(ended.id, ended.request, run(ended.request, limit), limit)
        probes = tuple(found if p.id == ended.id else p for p in study.probes)
        study = replace(study, probes=probes)
    raise AssertionError("the planner does not stop")


def needs_bytes(probe):
    """What a probe was seen to need: infinite where it ran out, 0 where it says nothing."""
    found = probe.measurement
    if found is None or found.outcome is Outcome.OOM:
        return 0.0 if found is None else float("inf")
    if found.memory is None:
        return 0.0
    return found.memory.allocated_bytes + found.memory.overhead_bytes


def ruled_out(probes, asked, limit_bytes):
    """Why settings must not be proposed for their own sake after ``probes``; empty if they may.

    All probes were run under ``limit_bytes``.
    """
    for probe in probes:
        had, found = probe.request.settings, probe.measurement
        if found.outcome in CLOSES_CLASS and had.layout == asked.layout:
            return f"its class is {found.outcome}"
        if had == asked and found.outcome in ENDS:
            return f"it ended as {found.outcome}"
        if needs_bytes(probe) > limit_bytes and needs_no_less(asked, had):
            return f"{had} did not fit"
    return ""


def needs_no_less(one, other):
    """Whether settings need no less memory than others that differ in four knobs only."""
    accumulates = [s.gradient_accumulation_steps > 1 for s in (one, other)]
    same = replace(
        one.layout,
        sync_each_batch=other.sync_each_batch,
        tp_recompute_allgather=other.tp_recompute_allgather,
        activation_checkpointing=other.activation_checkpointing,
    )
    full = other.activation_checkpointing is Checkpointing.FULL
    kept = tuple(Checkpointing) if full else (Checkpointing.NONE, other.activation_checkpointing)
    return (
        same == other.layout
        and accumulates[0] == accumulates[1]
        and one.micro_batch_size >= other.micro_batch_size
        and one.sync_each_batch <= other.sync_each_batch
        and one.tp_recompute_allgather <= other.tp_recompute_allgather
        and one.activation_checkpointing in kept
    )


def floats(value):
    """All numbers in JSON values."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from floats(one)


def all_finite(value):
    """Whether no number in JSON values is infinite or not a number."""
    return all(map(isfinite, floats(value)))
