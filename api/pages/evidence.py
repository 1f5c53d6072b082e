"""One probe in full: what was tried, what came of it, and the evidence."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

from api.pages.charts import OUTSIDE, memory_bar
from api.pages.render import spaced
from tuner.core.cluster import Device
from tuner.core.measurement import RAN, Measurement, Memory, OutOfMemory
from tuner.core.study import Probe, Study
from tuner.core.words import describe, probe_name, rank_word
from tuner.planner.probes import (
    FIDELITIES,
    at_todays_rates,
    attention_text,
    clocks_text,
    time_facts,
)
from tuner.store import Attempt
from tuner.text import duration_text, show, size_text, time_text

# Lines of the end of a rank's log and characters of one: on the probe's page, on the study's.
LOG_LINES, LONGEST_LINE = 60, 400
LOG_LINES_IN_SHORT, LONGEST_LINE_IN_SHORT = 6, 160
# Ranks whose logs are shown.
MOST_LOGS = 16
# A name, and what is known of it.
Fact = tuple[str, str]


class Log(NamedTuple):
    """The end of a rank's log."""

    rank: int
    text: str


def evidence_of(study: Study, probe: Probe, wasted: Sequence[Attempt] = ()) -> SimpleNamespace:
    """All that is known of a probe, emulated communication at today's rates; with its ``wasted``
    attempts, of which nothing came."""
    found = at_todays_rates(study, probe)
    memory = found.memory if found else None
    ranks = memory.per_rank_bytes if memory and len(set(memory.per_rank_bytes)) > 1 else ()
    bar = None
    if memory:
        sizes = {name: float(size) for name, size in memory.by_category.items()}
        sizes[OUTSIDE] = float(memory.overhead_bytes)
        bar = memory_bar(sizes, study, f"Memory of one {rank_word(study.question)}")
    return SimpleNamespace(
        name=probe_name(probe).capitalize(),
        settings=tuple((name, show(v)) for name, v in probe.request.settings.as_dict().items()),
        outcome=str(found.outcome if found else probe.state),
        ran=found is not None and found.outcome in RAN,
        detail=found.detail if found else "",
        facts=(*_facts(study, probe, found), *map(_attempt_fact, wasted)),
        bar=bar,
        phases=tuple((n, size_text(s)) for n, s in memory.by_phase.items()) if memory else (),
        ranks=tuple((str(rank), size_text(size)) for rank, size in enumerate(ranks)),
        # Of each number of micro-batches: steps timed, and the shortest, median and longest.
        steps=tuple(
            (str(n), str(len(t)), *(time_text(end(t)) for end in (min, median, max) if t))
            for n, t in (found.step_times_s.items() if found else ())
        ),
        collectives=tuple(
            (one.op, one.axis, one.phase, one.overlap.replace("_", " ") or "-", f"{one.count:,}",
             size_text(one.bytes))
            for one in (found.collectives if found else ())
        ),
        logs=tuple(_logs(found, LOG_LINES, LONGEST_LINE)) if found else (),
        finished_at=probe.finished_at or "",
    )  # fmt: skip


def _attempt_fact(one: Attempt) -> Fact:
    """When an attempt was made, by which worker, and why nothing came of it."""
    moments = map(datetime.fromisoformat, (one.started_at, one.ended_at))
    begin, end = (f"{at:%Y-%m-%d %H:%M:%S} UTC" for at in moments)
    how = f"{one.outcome}, tried again" if one.outcome else str(one.state).replace("_", " ")
    why = f" ({one.detail})" if one.detail else ""
    return f"attempt {one.number}", f"{how} at {end}{why}; {one.worker} had it since {begin}"


def trouble_of(probe: Probe, found: Measurement) -> SimpleNamespace:
    """A failed probe as the study's own page shows it."""
    oom = found.oom
    return SimpleNamespace(
        id=probe.id,
        outcome=str(found.outcome),
        words=spaced(describe(probe.request.settings)),
        said=found.detail[:LONGEST_LINE]
        if oom is None
        else f"out of memory in {oom.phase}: rank {oom.rank} asked for"
        f" {size_text(oom.requested_bytes)} with {size_text(oom.allocated_bytes)} allocated,"
        f" of {size_text(oom.limit_bytes)}",
        facts=tuple(_oom_facts(oom)) if oom else (),
        logs=tuple(_logs(found, LOG_LINES_IN_SHORT, LONGEST_LINE_IN_SHORT))[:1],
    )


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
    yield from time_facts(study, probe, found)
    if wanted := found.expected_optimizer_steps:
        yield "optimizer", f"stepped {found.optimizer_steps} times of {wanted}"
    hardware = {name: one for name, one in found.hardware.items() if name != "clocks"}
    known = {
        "attention": attention_text(study, found) if found.attention else "",
        "versions": ", ".join(f"{name} {one}" for name, one in found.versions.items()),
        "hardware": ", ".join(f"{name} {one}" for name, one in hardware.items()),
        "clocks": clocks_text(found),
    }
    yield from ((name, text) for name, text in known.items() if text)
    yield from (("note", note) for note in found.notes)
    yield "cost", f"{duration_text(found.wall_s)}, {found.device_s:,.0f} device-seconds"


def _oom_facts(oom: OutOfMemory) -> Iterator[Fact]:
    def exact(size: int) -> str:
        return f"{size_text(size)} ({size:,} bytes)"

    yield "ran out in", f"{oom.phase}, on rank {oom.rank}"
    yield "asked for", exact(oom.requested_bytes)
    yield "allocated then", exact(oom.allocated_bytes)
    if oom.reserved_bytes != oom.allocated_bytes:
        yield "reserved then", exact(oom.reserved_bytes)
    yield "limit", exact(oom.limit_bytes)
    if (over := oom.needed_bytes - oom.limit_bytes) > 0:
        yield "over the limit", f"by {size_text(over)} at least"


def _memory_facts(study: Study, memory: Memory) -> Iterator[Fact]:
    limit, per = study.limits.limit_bytes(study.question.cluster), rank_word(study.question)
    yield "memory", f"{size_text(memory.allocated_bytes)} allocated per {per}"
    if memory.overhead_bytes:
        yield "outside the allocator", size_text(memory.overhead_bytes)
    yield "limit", f"{'fits in' if memory.needed_bytes <= limit else 'exceeds'} {size_text(limit)}"
    yield "reserved", size_text(memory.reserved_bytes)
    shown = size_text(memory.device_bytes)
    if study.question.cluster.gpu.device is Device.CPU:
        yield "its process", f"{shown}, with Python, torch and their threads"
    else:
        yield "on the device", f"nvidia-smi may show {shown}; the rest is cache"
    if memory.allocation_retries:
        yield "near misses", f"{memory.allocation_retries} allocations needed a second try"


def _logs(found: Measurement, most_lines: int, longest: int) -> Sequence[Log]:
    logs = []
    for rank, tail in sorted(found.log_tails.items())[:MOST_LOGS]:
        lines = [line[:longest] for line in tail.strip().splitlines()[-most_lines:]]
        if lines:
            logs.append(Log(rank=rank, text="\n".join(lines)))
    return logs
