"""One probe in full: what was tried, what came of it, and the evidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from api.pages.charts import memory_bar
from api.pages.render import spaced
from tuner.core.measurement import RAN, Fidelity, Measurement, Memory, OutOfMemory
from tuner.core.study import Probe, Study
from tuner.core.words import describe, range_text, rank_word, speed_text
from tuner.planner import speed_of
from tuner.planner.probes import at_todays_rates, attention_text, clocks_text, step_time_of
from tuner.space.inactive import show
from tuner.text import count_text, duration_text, size_text, time_text

# Lines that are shown of the end of a rank's log.
LOG_LINES = 60
# The same on the study's own page.
LOG_LINES_IN_SHORT = 6
# Characters of a line of a log.
LONGEST_LINE = 400
# The same on the study's own page.
LONGEST_LINE_IN_SHORT = 160
# Ranks whose logs are shown.
MOST_LOGS = 16
# What stands behind figures of each fidelity.
FIDELITIES: Mapping[Fidelity, str] = {
    Fidelity.MEASURED: "all ranks were run",
    Fidelity.EMULATED: "memory and computing of rank 0 alone, communication by arithmetic",
    Fidelity.PREDICTED: "tensors by a dry run, what is beside them by arithmetic",
}

# A name, and what is known of it.
Fact = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The end of a rank's log."""

    rank: int
    """Whose."""
    text: str
    """Its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One probe as its page shows it."""

    id: int
    """Its number."""
    words: str
    """Its settings in short."""
    settings: tuple[Fact, ...]
    """All of them."""
    outcome: str
    """How it ended, or where it stands."""
    ran: bool
    """Whether its steps were done."""
    detail: str
    """What happened, in one line."""
    facts: tuple[Fact, ...]
    """Memory, time, versions, cost."""
    bar: Markup
    """Its memory by category; empty where it is not known."""
    phases: tuple[Fact, ...]
    """The highest memory of each phase."""
    ranks: tuple[Fact, ...]
    """The highest memory of each rank, if they differ."""
    steps: tuple[tuple[str, ...], ...]
    """Of each number of micro-batches that was run: it, steps timed, shortest, median, longest."""
    collectives: tuple[tuple[str, ...], ...]
    """Operation, axis, phase, what hides it, calls, bytes."""
    logs: tuple[Log, ...]
    """The end of each rank's log, of one that failed."""
    finished_at: str
    """When it was done, UTC in ISO 8601; empty while it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One probe that failed, in short."""

    id: int
    """Its number."""
    outcome: str
    """How it ended."""
    words: str
    """Its settings in short."""
    said: str
    """What happened, in one line."""
    facts: tuple[Fact, ...]
    """Where memory ran out, by how much."""
    logs: tuple[Log, ...]
    """The end of the log of one rank."""


def evidence_of(study: Study, probe: Probe) -> Evidence:
    """All that is known of a probe, emulated communication at today's rates."""
    found = at_todays_rates(study, probe)
    settings = probe.request.settings
    memory = found.memory if found else None
    return Evidence(
        id=probe.id,
        words=spaced(describe(settings)),
        settings=tuple((name, show(value)) for name, value in settings.as_dict().items()),
        outcome=str(found.outcome if found else probe.state),
        ran=found is not None and found.outcome in RAN,
        detail=found.detail if found else "",
        facts=tuple(_facts(study, probe, found)),
        bar=_bar(study, memory) if memory else Markup(""),
        phases=tuple((n, size_text(s)) for n, s in memory.by_phase.items()) if memory else (),
        ranks=tuple(_ranks(memory)) if memory else (),
        steps=tuple(_steps(found)) if found else (),
        collectives=tuple(_collectives(found)) if found else (),
        logs=tuple(_logs(found, LOG_LINES, LONGEST_LINE)) if found else (),
        finished_at=probe.finished_at or "",
    )


def trouble_of(study: Study, probe: Probe, found: Measurement) -> Trouble:
    """A failed probe as the study's own page shows it."""
    oom = found.oom
    return Trouble(
        id=probe.id,
        outcome=str(found.outcome),
        words=spaced(describe(probe.request.settings)),
        said=oom_text(oom) if oom else found.detail[:LONGEST_LINE],
        facts=tuple(_oom_facts(oom)) if oom else (),
        logs=tuple(_logs(found, LOG_LINES_IN_SHORT, LONGEST_LINE_IN_SHORT))[:1],
    )


def oom_text(oom: OutOfMemory) -> str:
    """Says where memory ran out, and for how much."""
    return (
        f"out of memory in {oom.phase}: rank {oom.rank} asked for {size_text(oom.requested_bytes)}"
        f" with {size_text(oom.allocated_bytes)} allocated, of {size_text(oom.limit_bytes)}"
    )


# -- facts ------------------------------------------------------------------------------------


def _facts(study: Study, probe: Probe, found: Measurement | None) -> Iterator[Fact]:
    yield "how", f"{probe.request.fidelity}: {FIDELITIES[probe.request.fidelity]}"
    if probe.request.repetition:
        yield "repetition", str(probe.request.repetition)
    if found is None:
        return
    if found.oom:
        yield from _oom_facts(found.oom)
    if found.memory:
        yield from _memory_facts(study, found.memory)
    yield from _time_facts(study, probe, found)
    if found.losses:
        first, last = found.losses[0], found.losses[-1]
        yield "loss", f"{first:.4f} in the first step, {last:.4f} in the last"
    if found.expected_optimizer_steps:
        yield (
            "optimizer",
            (f"stepped {found.optimizer_steps} times of {found.expected_optimizer_steps}"),
        )
    if found.attention:
        yield "attention", attention_text(study, found)
    if found.versions:
        yield "versions", ", ".join(f"{name} {one}" for name, one in found.versions.items())
    hardware = {name: one for name, one in found.hardware.items() if name != "clocks"}
    if hardware:
        yield "hardware", ", ".join(f"{name} {one}" for name, one in hardware.items())
    if clocks := clocks_text(found):
        yield "clocks", clocks
    yield from (("note", note) for note in found.notes)
    yield "cost", f"{duration_text(found.wall_s)}, {found.device_s:,.0f} device-seconds"


def _oom_facts(oom: OutOfMemory) -> Iterator[Fact]:
    over = oom.needed_bytes - oom.limit_bytes
    yield "ran out in", f"{oom.phase}, on rank {oom.rank}"
    yield "asked for", f"{size_text(oom.requested_bytes)} ({oom.requested_bytes:,} bytes)"
    yield "allocated then", f"{size_text(oom.allocated_bytes)} ({oom.allocated_bytes:,} bytes)"
    if oom.reserved_bytes != oom.allocated_bytes:
        yield "reserved then", f"{size_text(oom.reserved_bytes)} ({oom.reserved_bytes:,} bytes)"
    yield "limit", f"{size_text(oom.limit_bytes)} ({oom.limit_bytes:,} bytes)"
    if over > 0:
        yield "over the limit", f"by {size_text(over)} at least"


def _memory_facts(study: Study, memory: Memory) -> Iterator[Fact]:
    limit, per = study.terms.limit_bytes(study.question.cluster), rank_word(study.question)
    yield "memory", f"{size_text(memory.allocated_bytes)} allocated per {per}"
    if memory.overhead_bytes:
        yield "outside the allocator", size_text(memory.overhead_bytes)
    needed = memory.allocated_bytes + memory.overhead_bytes
    share = "fits in" if needed <= limit else "exceeds"
    yield "limit", f"{share} {size_text(limit)}"
    yield "reserved", size_text(memory.reserved_bytes)
    yield "on the device", f"{size_text(memory.device_bytes)}, as its own tool shows it"
    if memory.allocation_retries:
        yield "near misses", f"{memory.allocation_retries} allocations needed a second try"


def _time_facts(study: Study, probe: Probe, found: Measurement) -> Iterator[Fact]:
    time, per = step_time_of(study, probe, found), rank_word(study.question)
    if time.value is not None:
        speed = speed_of(time, study.question)
        by = "" if found.step_times_s else ", by arithmetic"
        yield "speed", f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)}){by}"
        yield (
            "step",
            (
                f"{time_text(time.value)} s (80% interval {time_text(time.low)} to"
                f" {time_text(time.high)})"
            ),
        )
    emulation = found.emulation
    if emulation is None:
        return
    count = max(emulation.compute_s)
    passes = count_text(count, "micro-batch") if count == 1 else f"{count} micro-batches"
    yield "computing", f"{time_text(median(emulation.compute_s[count]))} s of {passes}"
    if emulation.unpriced:
        yield "exposed communication", f"unknown: {emulation.unpriced}"
    else:
        exposed = emulation.exposed_s[count]
        yield (
            "exposed communication",
            (
                f"{time_text(exposed.value_s)} s (80% interval {time_text(exposed.low_s)} to"
                f" {time_text(exposed.high_s)})"
            ),
        )


# -- tables -----------------------------------------------------------------------------------


def _bar(study: Study, memory: Memory) -> Markup:
    sizes = {name: float(size) for name, size in memory.by_category.items()}
    per = rank_word(study.question)
    return memory_bar(sizes, label=f"Memory of one {per}", study=study, prefix="probe-memory")


def _ranks(memory: Memory) -> Iterator[Fact]:
    if len(set(memory.per_rank_bytes)) > 1:
        for rank, size in enumerate(memory.per_rank_bytes):
            yield str(rank), size_text(size)


def _steps(found: Measurement) -> Iterator[tuple[str, ...]]:
    for count, times in found.step_times_s.items():
        ends = (min(times), median(times), max(times)) if times else ()
        yield (str(count), str(len(times)), *(time_text(one) for one in ends))


def _collectives(found: Measurement) -> Iterator[tuple[str, ...]]:
    for one in found.collectives:
        hidden = one.overlap.replace("_", " ") or "-"
        yield one.op, one.axis, one.phase, hidden, f"{one.count:,}", size_text(one.bytes)


def _logs(found: Measurement, most_lines: int, longest: int) -> Sequence[Log]:
    logs = []
    for rank, tail in sorted(found.log_tails.items())[:MOST_LOGS]:
        lines = [line[:longest] for line in tail.strip().splitlines()[-most_lines:]]
        if lines:
            logs.append(Log(rank=rank, text="\n".join(lines)))
    return logs
