"""Learns about a study's configurations from its probes, under today's memory limit."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.evaluation import BY_FIDELITY, Evaluation
from tuner.core.measurement import (
    BEGINNING,
    BROKEN,
    CLOSES_CLASS,
    PROBED,
    RAN,
    Fidelity,
    Measurement,
    Outcome,
)
from tuner.core.quantity import UNKNOWN, Quantity
from tuner.core.study import Probe, ProbeState, Question, Study, by_settings
from tuner.cost.constants import default_costs
from tuner.cost.memory.device import communicator_count
from tuner.guard.faults import Wrong, blamed_by_counts, wrong_of
from tuner.planner.probes import repriced
from tuner.planner.spending import probes_of_request
from tuner.planner.timing import RunVariation, is_extrapolated, seen_variation, speed_of, step_time
from tuner.space import Space, enumerate_space
from tuner.text import kept

# Outcomes that say nothing of the configuration: a later request may try it again.
TEACHES_NOTHING = frozenset(
    {Outcome.COMMUNICATION_ERROR, Outcome.DEVICE_LOST, Outcome.WORKER_LOST, Outcome.CANCELLED}
)

# A layout, and whether it accumulates: within one, memory grows with the micro-batch size.
Family = tuple[Settings, bool]


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Everything that planning and answering need to know."""

    study: Study  # with its probes of one fidelity, at today's rates
    whole: Study  # with probes of other fidelities too, which change the order of a search alone
    space: Space
    limit_bytes: int  # bytes that one device may need today
    findings: Mapping[Settings, Evaluation]
    """Legal configurations whose steps were done, whether they fit today or not."""
    too_large: Mapping[Settings, Evaluation]
    """Configurations that were seen not to fit today, with what they need; where memory ran out,
    with what they need at least."""
    closed: Mapping[Settings, Outcome] = field(default_factory=dict)
    """Configurations that failed for other reasons, with the outcome."""
    closed_layouts: Mapping[Settings, Outcome] = field(default_factory=dict)
    """Layouts that are refused, or that train wrongly and no one knob is known to be why, with the
    outcome."""
    wrong: Mapping[Settings, Wrong] = field(default_factory=dict)
    """Legal configurations that train something else, or may well; they are closed too."""
    slow: Mapping[Settings, Evaluation] = field(default_factory=dict)
    """Configurations that were ended before their steps were done; after a timeout nothing is known
    of their time and memory."""
    failed: frozenset[Settings] = frozenset()
    """Configurations that did not run, for a reason of their own that is not the device's
    memory."""
    smallest_too_large: Mapping[Family, int] = field(default_factory=dict)
    """The smallest micro-batch size of a family at which it, or a lighter one, does not fit."""
    repetitions: Mapping[Settings, int] = field(default_factory=dict)
    """How often configurations were probed already."""

    @cached_property
    def tried(self) -> frozenset[Settings]:
        return frozenset(p.request.settings for p in self.study.probes if p.measurement)

    @cached_property
    def fitting(self) -> tuple[Evaluation, ...]:
        """Findings that fit and are sound, fastest first; equal ones in the space's order."""
        found = [f for f in self.findings.values() if self.fits(f)]
        return tuple(sorted(found, key=lambda f: (f.seconds, str(f.settings))))

    def fits(self, finding: Evaluation) -> bool:
        """True where it needs no more than the limit, was timed, and nothing speaks against it."""
        settings = finding.settings
        return (
            finding.step_time_s.value is not None
            and settings not in self.too_large
            and settings not in self.closed
            and settings.layout not in self.closed_layouts
        )

    def is_infeasible(self, settings: Settings) -> bool:
        """True where it, or one that needs no more than it does, was seen not to fit."""
        if settings in self.too_large:
            return True
        smallest = self.smallest_too_large.get(family(settings))
        return smallest is not None and settings.micro_batch_size >= smallest

    @cached_property
    def unconfirmed(self) -> frozenset[Settings]:
        """Configurations with a knob's value that failed once, in another layout. One more probe
        may show that only the layout was wrong; until then none of them is an answer."""
        return frozenset(
            settings
            for settings, wrong in self.wrong.items()
            if wrong.is_unconfirmed and self.closed.get(settings) is wrong.outcome
        )

    @cached_property
    def infeasible(self) -> frozenset[Settings]:
        families, smallest = _families(self.space), self.smallest_too_large.items()
        heavy = (
            s for f, size in smallest for s in families.get(f, ()) if s.micro_batch_size >= size
        )
        return frozenset((*heavy, *(one for one in self.too_large if one in self.space.places)))

    def _is_too_slow(self, settings: Settings) -> bool:
        # A smaller limit may have lost what a slow one was compared with: then it is tried once
        # more.
        slow = self.slow[settings]
        if slow.step_time_s.value is None or self.repetitions[settings] > 1:
            return True
        return bool(self.fitting) and self.fitting[0].seconds < slow.step_time_s.value

    def candidates(self, but: Collection[Settings] = ()) -> list[Settings]:
        """Legal configurations that may be worth a probe of their own: untried, not ruled out, and
        none of others that are named.

        Those of :attr:`unconfirmed` are among them.
        """
        closed, slow = self.closed.keys() - self.unconfirmed, filter(self._is_too_slow, self.slow)
        out = {*self.findings, *closed, *slow, *self.infeasible, *but}
        left = [settings for settings in self.space.legal if settings not in out]
        if not self.closed_layouts:
            return left
        return [one for one in left if one.layout not in self.closed_layouts]


# An answer, a plan, and what pages show are all made of it.
@kept(maxsize=8)
def learned(whole: Study, fidelity: Fidelity | None = None) -> Knowledge:
    """Everything that a study's finished probes of a fidelity, by default the one it asks for, say
    today. Their order does not matter."""
    study = repriced(whole.at(fidelity or whole.limits.fidelity))
    question, space = study.question, enumerate_space(study.question)
    limit = study.limits.limit_bytes(question.cluster)
    probes = sorted(
        (p for p in study.probes if p.state is ProbeState.DONE and p.measurement),
        key=lambda p: p.place,
    )
    ended = by_settings(
        probe
        for probe in probes
        if outcome_of(probe) is Outcome.OK and probe.measurement and probe.measurement.memory
    )
    # All configurations share the machine.
    variation = seen_variation(map(measurements_of, ended.values()))
    findings = {s: _finding(question, pool, variation, limit) for s, pool in ended.items()}
    needs = [need for p in probes if (need := _need(p, limit))]
    needs += [replace(f, over_bytes=f.most_bytes - limit) for f in findings.values() if not f.fits]
    too_large: dict[Settings, Evaluation] = {}
    for one in sorted(
        needs, key=lambda n: (n.most_bytes, n.outcome is Outcome.OOM, -n.probes[0].id)
    ):
        too_large[one.settings] = one
    smallest: dict[Family, int] = {}
    for one in needs:
        micro = one.settings.micro_batch_size
        for key in heavier(*family(one.settings)):
            smallest[key] = min(micro, smallest.get(key, micro))
    repetitions: dict[Settings, int] = defaultdict(int)
    for probe in study.probes:
        settings = probe.request.settings
        repetitions[settings] = max(repetitions[settings], probe.request.repetition + 1)
    wrong = wrong_of(whole, space.legal)
    now = {probe.id for probe in probes_of_request(study)}
    closed = {one: found.outcome for one, found in wrong.items()}
    closed_layouts: dict[Settings, Outcome] = {}
    for probe in probes:
        settings, outcome, found = probe.request.settings, outcome_of(probe), probe.measurement
        assert found is not None
        # What taught nothing is closed for the request that it failed in.
        failed_now = outcome in TEACHES_NOTHING and probe.id in now and settings not in findings
        if outcome and (_is_broken(probe, now) or failed_now):
            closed[settings] = outcome
        # Where it is one knob's, `wrong` has it.
        ranks = question.cluster.world_size
        if outcome in CLOSES_CLASS and not blamed_by_counts(settings, ranks, found):
            closed_layouts[settings.layout] = outcome
    return Knowledge(
        study=study,
        whole=whole,
        space=space,
        limit_bytes=limit,
        findings={s: f for s, f in findings.items() if s in space.places},
        too_large=too_large,
        closed=closed,
        closed_layouts=closed_layouts,
        wrong=wrong,
        slow=_slow(question, probes, findings, limit),
        failed=frozenset(
            p.request.settings
            for p in probes
            if _is_broken(p, now) and p.request.settings not in findings
        ),
        smallest_too_large=smallest,
        repetitions=dict(repetitions),
    )


def outcome_of(probe: Probe) -> Outcome | None:
    return probe.measurement.outcome if probe.measurement else None


def finished(known: Knowledge) -> list[Probe]:
    """Probes that have an outcome, oldest first; what was withdrawn by another request has none."""
    found = (p for p in known.study.probes if outcome_of(p) not in (None, Outcome.CANCELLED))
    return sorted(found, key=lambda p: p.place)


def last_failure(known: Knowledge) -> str:
    """How the probe failed that ended last, if none has run: its outcome and detail."""
    done = [p for p in known.study.probes if p.measurement]
    if not done or any(outcome_of(probe) in RAN for probe in done):
        return ""
    found = max(done, key=lambda probe: (probe.finished_at or "", probe.place)).measurement
    assert found is not None
    return f"{found.outcome.words}: {found.detail}" if found.detail else found.outcome.words


def exactly(size_bytes: float, fidelity: Fidelity) -> Quantity:
    provenance = BY_FIDELITY[fidelity]
    return Quantity(value=size_bytes, low=size_bytes, high=size_bytes, provenance=provenance)


def measurements_of(probes: Iterable[Probe]) -> list[Measurement]:
    return [probe.measurement for probe in probes if probe.measurement]


def _finding(
    question: Question, probes: Sequence[Probe], variation: RunVariation, limit_bytes: int
) -> Evaluation:
    ordered = tuple(sorted(probes, key=lambda p: (p.request.repetition, p.id)))
    request, measurements = ordered[0].request, measurements_of(ordered)
    memories = [m.memory for m in measurements if m.memory]
    count = request.settings.gradient_accumulation_steps
    whole = spread = step_time(measurements, count, variation=variation)
    if any(m.emulation for m in measurements):
        spread = step_time(measurements, count, with_model=False, variation=variation)
    provenance = BY_FIDELITY[request.fidelity]

    def range_of(sizes: Sequence[int]) -> Quantity:
        highest, lowest = max(sizes), min(sizes)
        return Quantity(value=highest, low=lowest, high=highest, provenance=provenance)

    # The lower end is the smallest peak that a steady step reached.
    highest = max(memory.allocated_bytes for memory in memories)
    lowest = min(min(memory.allocated_low_bytes, highest) for memory in memories)
    overhead = max(memory.overhead_bytes for memory in memories)
    largest = max(memories, key=lambda memory: memory.allocated_bytes)
    return Evaluation(
        settings=request.settings,
        fidelity=request.fidelity,
        outcome=Outcome.OK,
        fits=highest + overhead <= limit_bytes,
        needed_bytes=range_of([highest + overhead, lowest + overhead]),
        allocated_bytes=range_of([highest, lowest]),
        reserved_bytes=range_of([memory.reserved_bytes for memory in memories]),
        device_bytes=range_of([memory.device_bytes for memory in memories]),
        outside_bytes=overhead,
        limit_bytes=limit_bytes,
        breakdown=largest.by_category,
        step_time_s=whole,
        spread_s=spread,
        tokens_per_s_per_gpu=speed_of(whole, question),
        probes=ordered,
        extrapolated=is_extrapolated(measurements, count),
    )


def _need(probe: Probe, limit_bytes: int) -> Evaluation | None:
    """The need of a probe that ran out of memory, or was stopped early, where that does not fit."""
    found, had, request = probe.measurement, probe.memory_limit_bytes, probe.request
    if found is None or found.outcome not in (Outcome.OOM, Outcome.STOPPED_EARLY):
        return None
    if found.outcome is Outcome.OOM:
        needed = found.oom.needed_bytes if found.oom else limit_bytes
        # One that had less than today's limit, and would have kept within today's so far, only says
        # what the step needs at least.
        if had is not None and had < limit_bytes and needed <= limit_bytes:
            return None
        needed = max(needed, 1)
    else:
        needed = found.memory.needed_bytes if found.memory else 0
        if needed <= limit_bytes:
            return None
    return Evaluation(
        settings=request.settings,
        fidelity=request.fidelity,
        outcome=found.outcome,
        fits=False,
        over_bytes=max(needed - limit_bytes, 0),
        needed_bytes=exactly(needed, request.fidelity),
        limit_bytes=limit_bytes,
        probes=(probe,),
    )


def _slow(
    question: Question,
    probes: Iterable[Probe],
    findings: Mapping[Settings, Evaluation],
    limit_bytes: int,
) -> dict[Settings, Evaluation]:
    endings = (Outcome.TIMEOUT, Outcome.STOPPED_EARLY)
    slow = {}
    for settings, found in by_settings(p for p in probes if outcome_of(p) in endings).items():
        if settings in findings:
            continue
        measurements, fidelity = measurements_of(found), found[0].request.fidelity
        early = tuple(p for p in found if outcome_of(p) is Outcome.STOPPED_EARLY)
        needs = [one.memory.needed_bytes for one in measurements if one.memory]
        time = step_time(measurements, settings.gradient_accumulation_steps)
        slow[settings] = Evaluation(
            settings=settings,
            fidelity=fidelity,
            outcome=Outcome.STOPPED_EARLY if early else Outcome.TIMEOUT,
            needed_bytes=exactly(max(needs), fidelity) if needs else UNKNOWN,
            limit_bytes=limit_bytes,
            step_time_s=time,
            spread_s=time,
            tokens_per_s_per_gpu=speed_of(time, question),
            probes=early,
        )
    return slow


def _is_broken(probe: Probe, now: Collection[int]) -> bool:
    """True where a probe shows that its configuration does not run."""
    found = probe.measurement
    if found is None or found.outcome not in BROKEN:
        return False
    # A crash before the model was there may be of the machine: it says nothing to later requests.
    early = found.outcome is Outcome.CRASHED and found.phase in BEGINNING
    return probe.id in now or not early


def family(settings: Settings) -> Family:
    return settings.layout, settings.gradient_accumulation_steps > 1


# A study is planned again after every probe, in the same space.
@kept(maxsize=8)
def _families(space: Space) -> Mapping[Family, Sequence[Settings]]:
    found: dict[Family, list[Settings]] = defaultdict(list)
    for settings in space.legal:
        found[family(settings)].append(settings)
    return found


# A study has few families, and hundreds of probes of them.
@lru_cache(maxsize=1024)
def heavier(key: Settings, accumulates: bool) -> tuple[Family, ...]:
    """A family, and those that need no less at the same micro-batch size.

    Deferred synchronisation keeps whole gradients between micro-batches, gathered activations that
    are not gathered again stay until backward, and so do all that are not computed again: most
    without checkpointing, fewest with full, none with offload. Of 3,522 pairs of configurations
    that differ in these two alone, three needed less by arithmetic, by 0.01% at most, and of 36
    that were dry-run one, by 0.02%: where activations are next to nothing. Of 3,008 pairs with a
    rung between them none did; of those rungs now one needs less, now the other. These pairs are
    without offload: that it needs no more than the others is reasoned, for it computes the same
    again as full and keeps none of the inputs on the device.
    """
    syncs = {key.sync_each_batch, False} if accumulates else {key.sync_each_batch}
    gathers = {key.tp_recompute_allgather, False}
    kept = {key.activation_checkpointing, Checkpointing.NONE}
    if key.activation_checkpointing is Checkpointing.FULL:
        kept |= set(Checkpointing) - {Checkpointing.OFFLOAD}
    if key.activation_checkpointing is Checkpointing.OFFLOAD:
        kept |= set(Checkpointing)
    found = []
    for sync, gather, keep in product(sorted(syncs), sorted(gathers), sorted(kept)):
        changed: dict[str, Any] = {"sync_each_batch": sync, "tp_recompute_allgather": gather}
        changed["defer_all_reduce"] = sync and key.defer_all_reduce
        found.append((replace(key, **changed, activation_checkpointing=keep), accumulates))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Device memory outside the allocator, as probes of the same machines found it.

    The catalogue's sizes of a context and of a communicator are of other machines. A probe that ran
    steps shows both together, for as many communicators as its configuration has.
    """

    cluster: Cluster
    by_count: Mapping[int, int] = field(default_factory=dict)
    """The most bytes that a rank had outside its allocator, by its number of communicators."""

    def of(self, settings: Settings) -> int | None:
        """Bytes outside the allocator of a configuration; ``None`` where nothing was seen.

        Of another number of communicators than was seen, those of the nearest, and for each one
        more or less what the numbers seen differ by, or the catalogue's size where there is one.
        """
        if not self.by_count:
            return None
        count = communicator_count(settings, self.cluster)
        nearest = min(self.by_count, key=lambda known: (abs(known - count), -known))
        least, most = min(self.by_count), max(self.by_count)
        if least == most:
            each = default_costs().device.communicator_bytes.value
        else:
            each = max(0.0, (self.by_count[most] - self.by_count[least]) / (most - least))
        apart = count - nearest
        return max(0, int(self.by_count[nearest] + (apart and apart * each)))


def overheads(study: Study) -> Overheads:
    """Collects the overheads that a study's probes saw; those of its past on the same cluster,
    where it has none.

    Measured probes go before emulated ones, whose communicators are the catalogue's.
    """
    cluster = study.question.cluster
    if cluster.gpu.device is not Device.CUDA:
        return Overheads(cluster=cluster)
    alike = [past for past in study.past if past.question.cluster == cluster]
    for fidelity, studies in product(PROBED, ([study], alike)):
        seen: dict[int, int] = {}
        for probe in (probe for one in studies for probe in one.at(fidelity).probes):
            found = probe.measurement
            if found is None or (found.emulation and found.emulation.stands_in):
                continue
            if (memory := found.memory) and memory.overhead_bytes:
                count = communicator_count(probe.request.settings, cluster)
                seen[count] = max(seen.get(count, 0), memory.overhead_bytes)
        if seen:
            return Overheads(cluster=cluster, by_count=seen)
    return Overheads(cluster=cluster)
