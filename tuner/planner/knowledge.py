"""Learns about a study's configurations from its probes, under today's memory limit."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tuner.core.configuration import Settings
from tuner.core.measurement import (
    BEGINNING,
    BROKEN,
    CLOSES_CLASS,
    RAN,
    Fidelity,
    Measurement,
    Outcome,
)
from tuner.core.quantity import Quantity
from tuner.core.study import Probe, ProbeState, Study
from tuner.guard.counts import blamed_by_counts
from tuner.guard.faults import Wrong
from tuner.planner.findings import Family, Finding, family, findings_of, heavier
from tuner.planner.probes import repriced
from tuner.planner.spending import probes_of_asking
from tuner.planner.timing import step_time
from tuner.planner.verdicts import wrong_of
from tuner.space import Space, enumerate_space
from tuner.text import Same

# Outcomes that say nothing of the settings: a later asking may try them again.
TEACHES_NOTHING = frozenset(
    {
        Outcome.COMMUNICATION_ERROR,
        Outcome.DEVICE_LOST,
        Outcome.WORKER_LOST,
        Outcome.CANCELLED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Memory that settings were found to need, more than there is."""

    settings: Settings
    """Which."""
    bytes: int
    """On one device."""
    at_least: bool
    """Whether it ran out of memory there, and may need more."""
    probe_id: int
    """Where that is known from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Settings that were ended before their steps were done."""

    step_time: Quantity
    """Seconds of a step, from the few that were timed; unknown after a timeout."""
    needed_bytes: int | None
    """What one device needed, of a probe that was stopped early; ``None`` after a timeout."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Everything that planning and answering need to know."""

    study: Study
    """Whose probes."""
    whole: Study
    """The same with probes of other fidelities, which change the order of a search alone."""
    space: Space
    """Its legal settings."""
    limit_bytes: int
    """Bytes that one device may need today."""
    findings: Mapping[Settings, Finding]
    """Legal settings whose steps were done, whether they fit today or not."""
    too_large: Mapping[Settings, Need]
    """Settings that were seen not to fit today."""
    closed: Mapping[Settings, str] = field(default_factory=dict)
    """Settings that failed for other reasons, with the outcome."""
    closed_classes: Mapping[Settings, str] = field(default_factory=dict)
    """Classes that are refused, or that train wrongly and no one knob is known to be why, with the
    outcome."""
    wrong: Mapping[Settings, Wrong] = field(default_factory=dict)
    """Legal settings that train something else, or may well; they are closed too."""
    slow: Mapping[Settings, Slow] = field(default_factory=dict)
    """Settings that were ended before their steps were done."""
    failed: frozenset[Settings] = frozenset()
    """Settings that did not run, for a reason of their own that is not the device's memory."""
    smallest_too_large: Mapping[Family, int] = field(default_factory=dict)
    """The smallest micro-batch size of a family at which it, or a lighter one, does not fit."""
    repetitions: Mapping[Settings, int] = field(default_factory=dict)
    """How often settings were probed already."""

    @cached_property
    def tried(self) -> frozenset[Settings]:
        """Settings of probes that are done."""
        return frozenset(p.request.settings for p in self.study.probes if p.measurement)

    @cached_property
    def fitting(self) -> tuple[Finding, ...]:
        """Findings that fit and are sound, fastest first; equal ones in the space's order."""
        found = [f for f in self.findings.values() if self.fits(f)]
        return tuple(sorted(found, key=lambda f: (f.seconds, str(f.settings))))

    def fits(self, finding: Finding) -> bool:
        """Says if it needs no more than the limit, was timed, and nothing speaks against it."""
        settings = finding.settings
        return (
            finding.step_time.value is not None
            and settings not in self.too_large
            and settings not in self.closed
            and settings.settings_class not in self.closed_classes
        )

    def is_infeasible(self, settings: Settings) -> bool:
        """Tells whether these settings, or ones that need no more than they do, were seen not to
        fit.
        """
        if settings in self.too_large:
            return True
        smallest = self.smallest_too_large.get(family(settings))
        return smallest is not None and settings.micro_batch_size >= smallest

    @cached_property
    def unconfirmed(self) -> frozenset[Settings]:
        """Settings with a knob's value that failed once, in another layout. One more probe may
        show that only the layout was wrong; until then none of them is an answer."""
        return frozenset(
            settings
            for settings, wrong in self.wrong.items()
            if wrong.is_unconfirmed and self.closed.get(settings) == str(wrong.outcome)
        )

    @cached_property
    def infeasible(self) -> frozenset[Settings]:
        """Legal settings of which :meth:`is_infeasible` holds."""
        return frozenset(filter(self.is_infeasible, self.space.legal))

    def _is_too_slow(self, settings: Settings) -> bool:
        """Says if they were ended for their slowness, and something that fits today is faster.

        A smaller limit may have lost the settings that they were compared with; then they are
        tried once more.
        """
        slow = self.slow.get(settings)
        if slow is None:
            return False
        if slow.step_time.value is None or self.repetitions[settings] > 1:
            return True
        return bool(self.fitting) and self.fitting[0].seconds < slow.step_time.value

    def candidates(self) -> list[Settings]:
        """Legal settings that may be worth a probe of their own: untried, and not ruled out.

        Those of :attr:`unconfirmed` are among them.
        """
        return [
            settings
            for settings in self.space.legal
            if settings not in self.findings
            and (settings not in self.closed or settings in self.unconfirmed)
            and not self._is_too_slow(settings)
            and settings.settings_class not in self.closed_classes
            and settings not in self.infeasible
        ]


def learned(study: Study, fidelity: Fidelity) -> Knowledge:
    """Everything that the study's finished probes of one fidelity say today; see :func:`learn`.

    It is kept for what is asked of the same study next: an answer, a plan, and what pages show are
    all made of it.

    Args:
        study: with its probes of all fidelities.
        fidelity: of the probes.

    Raises:
        UsageError: the question has no legal settings.
    """
    return _learned(Same(study), fidelity)


@lru_cache(maxsize=8)
def _learned(study: Same[Study], fidelity: Fidelity) -> Knowledge:
    return learn(study.value.at(fidelity), study.value)


def learn(study: Study, whole: Study | None = None) -> Knowledge:
    """Everything that the study's finished probes say today. Their order does not matter.

    Args:
        study: with its probes of one fidelity.
        whole: the same with those of all fidelities, where these are known.

    Raises:
        UsageError: the question has no legal settings.
    """
    whole, study = whole or study, repriced(study)
    space = enumerate_space(study.question)
    limit = study.terms.limit_bytes(study.question.cluster)
    probes = [p for p in study.probes if p.state is ProbeState.DONE and p.measurement]
    findings = findings_of(probes)
    needs = [need for p in probes if (need := _need_of_oom(p, limit))]
    needs += [_need_of(f) for f in findings.values() if f.needed_bytes > limit]
    slow = _slow(probes, findings)
    needs += [need for p in probes if (need := _need_of_slow(p, limit))]
    now = {probe.id for probe in probes_of_asking(study)}
    legal = frozenset(space.legal)
    wrong = wrong_of(whole, space.legal)
    closed = {one: str(found.outcome) for one, found in wrong.items()}
    return Knowledge(
        study=study,
        whole=whole,
        space=space,
        limit_bytes=limit,
        findings={s: f for s, f in findings.items() if s in legal},
        too_large=_largest(needs),
        closed={**closed, **_closed(study, probes, findings)},
        closed_classes=_closed_classes(study, probes),
        wrong=wrong,
        slow=slow,
        failed=frozenset(
            p.request.settings
            for p in probes
            if _is_broken(p, now) and p.request.settings not in findings
        ),
        smallest_too_large=_smallest(needs),
        repetitions=_repetitions(study.probes),
    )


def outcome_of(probe: Probe) -> Outcome | None:
    """A finished probe's outcome."""
    return probe.measurement.outcome if probe.measurement else None


def _need_of(finding: Finding) -> Need:
    return Need(
        settings=finding.settings,
        bytes=finding.needed_bytes,
        at_least=False,
        probe_id=finding.probes[0].id,
    )


def _need_of_oom(probe: Probe, limit_bytes: int) -> Need | None:
    """Derives the need from an ``oom`` under ``limit_bytes``; nothing, if it may fit now.

    A probe that had a smaller limit than today's, and would have kept within today's so far,
    only says what the step needs at least.
    """
    measurement, had = probe.measurement, probe.memory_limit_bytes
    if not measurement or measurement.outcome is not Outcome.OOM:
        return None
    needed = measurement.oom.needed_bytes if measurement.oom else limit_bytes
    if had is not None and had < limit_bytes and needed <= limit_bytes:
        return None
    return Need(
        settings=probe.request.settings,
        bytes=max(needed, 1),
        at_least=True,
        probe_id=probe.id,
    )


def _largest(needs: Iterable[Need]) -> dict[Settings, Need]:
    found: dict[Settings, Need] = {}
    for need in sorted(needs, key=lambda n: (n.bytes, n.at_least, -n.probe_id)):
        found[need.settings] = need
    return found


def _smallest(needs: Iterable[Need]) -> dict[Family, int]:
    found: dict[Family, int] = {}
    for need in needs:
        micro = need.settings.micro_batch_size
        for key in heavier(need.settings):
            found[key] = min(micro, found.get(key, micro))
    return found


def _closed(
    study: Study, probes: Iterable[Probe], findings: Mapping[Settings, Finding]
) -> dict[Settings, str]:
    """Settings that failed; those that taught nothing only for the asking they failed in."""
    now = {probe.id for probe in probes_of_asking(study)}
    return {
        probe.request.settings: str(outcome)
        for probe in sorted(probes, key=lambda p: p.id)
        if (outcome := outcome_of(probe)) is not None
        if _is_broken(probe, now)
        or (
            outcome in TEACHES_NOTHING
            and probe.id in now
            and probe.request.settings not in findings
        )
    }


def _is_broken(probe: Probe, now: Collection[int]) -> bool:
    """Tells whether a probe shows that its settings do not run.

    A crash before the model was there may be of the machine: it closes them for the asking it came
    in, and says nothing to later ones.
    """
    found = probe.measurement
    if found is None or found.outcome not in BROKEN:
        return False
    early = found.outcome is Outcome.CRASHED and found.phase in BEGINNING
    return probe.id in now or not early


def _closed_classes(study: Study, probes: Iterable[Probe]) -> dict[Settings, str]:
    """Classes of what failed; where that is one knob's, :attr:`Knowledge.wrong` has it."""
    ranks = study.question.cluster.world_size
    return {
        probe.request.settings.settings_class: str(found.outcome)
        for probe in sorted(probes, key=lambda p: p.id)
        if (found := probe.measurement) is not None
        and found.outcome in CLOSES_CLASS
        and not blamed_by_counts(probe.request.settings, ranks, found)
    }


def _slow(probes: Iterable[Probe], findings: Mapping[Settings, Finding]) -> dict[Settings, Slow]:
    ended: dict[Settings, list[Measurement]] = defaultdict(list)
    for probe in probes:
        settings, found = probe.request.settings, probe.measurement
        if found and found.outcome in (Outcome.TIMEOUT, Outcome.STOPPED_EARLY):
            ended[settings].append(found)
    return {
        settings: _slow_of(settings, found)
        for settings, found in ended.items()
        if settings not in findings
    }


def _slow_of(settings: Settings, ended: Sequence[Measurement]) -> Slow:
    memories = [found.memory for found in ended if found.memory]
    return Slow(
        step_time=step_time(ended, settings.gradient_accumulation_steps),
        needed_bytes=max((m.allocated_bytes + m.overhead_bytes for m in memories), default=None),
    )


def _need_of_slow(probe: Probe, limit_bytes: int) -> Need | None:
    """Derives the need of a probe that was stopped early, if that does not fit."""
    memory = probe.measurement.memory if probe.measurement else None
    if outcome_of(probe) is not Outcome.STOPPED_EARLY or memory is None:
        return None
    needed = memory.allocated_bytes + memory.overhead_bytes
    if needed <= limit_bytes:
        return None
    return Need(settings=probe.request.settings, bytes=needed, at_least=False, probe_id=probe.id)


def _repetitions(probes: Iterable[Probe]) -> dict[Settings, int]:
    """One more than the highest repetition of each settings."""
    found: dict[Settings, int] = {}
    for probe in probes:
        settings = probe.request.settings
        found[settings] = max(found.get(settings, 0), probe.request.repetition + 1)
    return found


# Settings that end in the same accident, while none runs, after which an asking is ended.
ENOUGH = 3

# Accidents that say nothing of settings, each of which was tried again, and what to look at.
LOOK_AT = {
    Outcome.COMMUNICATION_ERROR: (
        "look at the links between the ranks: the interface that they take (NCCL_SOCKET_IFNAME,"
        " GLOO_SOCKET_IFNAME), firewalls, the fabric; NCCL_DEBUG=INFO says more"
    ),
    Outcome.DEVICE_LOST: (
        "look at the devices: tuner doctor, nvidia-smi, and Xid errors in the kernel's log"
    ),
    Outcome.WORKER_LOST: (
        "look at the machines of the workers: their logs, and whether memory ran out there"
    ),
}


def same_accident(study: Study) -> str:
    """Names the accident that all of a request's probes end in, and what to look at; empty if they
    do not.

    Args:
        study: with its probes of one fidelity.
    """
    hit: dict[Outcome, dict[Settings, str]] = defaultdict(dict)
    for probe in probes_of_asking(study):
        outcome = outcome_of(probe)
        if outcome in RAN:
            return ""
        if probe.measurement and outcome in LOOK_AT:
            hit[outcome][probe.request.settings] = probe.measurement.detail
    outcome = max(hit, key=lambda one: len(hit[one]), default=None)
    if outcome is None or len(hit[outcome]) < ENOUGH:
        return ""
    count, detail = len(hit[outcome]), next(filter(None, hit[outcome].values()), "")
    seen = f" ({detail})" if detail else ""
    return f"{count} settings ended as {outcome}{seen}, and none ran: {LOOK_AT[outcome]}"
