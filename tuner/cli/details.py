"""One probe in full: what it measured, or why it failed."""

from collections.abc import Iterator, Mapping
from statistics import median

from rich.console import Console
from rich.text import Text

from tuner.cli.columns import Column, table_of
from tuner.cli.console import facts_grid
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, Study
from tuner.core.words import range_text, rank_word, speed_text
from tuner.planner import speed_of
from tuner.planner.probes import at_todays_rates, attention_text, clocks_text, step_time_of
from tuner.space.inactive import show
from tuner.text import duration_text, moment_text, size_number, size_text, size_unit, time_text

# What stands behind figures that are not measured.
_FIDELITIES = {
    Fidelity.PREDICTED: "tensors by a dry run, what is beside them by arithmetic",
    Fidelity.EMULATED: "memory and computing of rank 0 alone, communication by arithmetic",
}

# Notes on a study's probes that are shown; a hot node has one for each.
MOST_NOTES = 5
# Lines that are shown of the end of a rank's log.
LOG_LINES = 12


def show_probe(console: Console, study: Study, probe: Probe) -> None:
    """Settings, outcome and all that was measured; communication at today's rates."""
    measurement = at_todays_rates(study, probe)
    assert measurement is not None
    console.print()
    console.print(facts_grid(_facts(study, probe, measurement)))
    if measurement.collectives:
        console.print()
        _show_collectives(console, measurement)
    show_logs(console, probe)


def show_logs(console: Console, probe: Probe) -> None:
    """The end of each rank's log, when the probe failed; an out of memory explains itself."""
    measurement = probe.measurement
    if measurement is None or measurement.outcome in (Outcome.OK, Outcome.OOM):
        return
    for rank, tail in sorted(measurement.log_tails.items()):
        lines = tail.strip().splitlines()[-LOG_LINES:]
        if lines:
            console.print()
            console.print(Text(f"Probe #{probe.id}, end of rank {rank}'s log", style="bold"))
            console.print(Text("\n".join(f"  {line}" for line in lines), style="dim"))


def show_notes(console: Console, study: Study) -> None:
    """Shows what may have made times of a study's probes longer than their configurations do."""
    noted = [(p.id, note) for p in study.probes if p.measurement for note in p.measurement.notes]
    for number, note in noted[:MOST_NOTES]:
        console.print(Text(f"Probe #{number}: {note}."))
    if len(noted) > MOST_NOTES:
        console.print(Text(f"{len(noted) - MOST_NOTES} more such notes: --json has them."))
    if noted:
        console.print()


def _facts(study: Study, probe: Probe, measurement: Measurement) -> Iterator[tuple[str, str]]:
    settings = probe.request.settings.as_dict()
    yield "settings", ", ".join(f"{k} {show(v)}" for k, v in settings.items())
    again = f" (repetition {probe.request.repetition})" if probe.request.repetition else ""
    yield "probe", f"#{probe.id}{again} of {study.id}, {moment_text(probe.finished_at or '')} UTC"
    if fidelity := _FIDELITIES.get(probe.request.fidelity):
        yield "fidelity", f"{probe.request.fidelity}: {fidelity}"
    yield "outcome", f"{measurement.outcome}{f': {d}' if (d := measurement.detail) else ''}"
    yield from _memory_facts(study, probe, measurement)
    yield from _time_facts(study, probe, measurement)
    if measurement.attention:
        yield "attention", attention_text(study, measurement)
    yield from [("clocks", clocks)] if (clocks := clocks_text(measurement)) else []
    yield from (("note", note) for note in measurement.notes)
    versions = ", ".join(f"{name} {version}" for name, version in measurement.versions.items())
    yield from [("versions", versions)] if versions else []
    allocator, configured = (measurement.hardware.get(n) for n in ("allocator", "allocator_conf"))
    if configured or allocator not in (None, "native"):
        yield "allocator", f"{allocator}, configured as {configured or 'usual'}"
    yield "cost", f"{duration_text(measurement.wall_s)}, {measurement.device_s:.0f} device-seconds"


def _memory_facts(
    study: Study, probe: Probe, measurement: Measurement
) -> Iterator[tuple[str, str]]:
    limit = size_text(study.terms.limit_bytes(study.question.cluster))
    if oom := measurement.oom:
        yield (
            "memory",
            f"more than {size_text(oom.needed_bytes)}: rank {oom.rank} asked for"
            f" {size_text(oom.requested_bytes)} in {oom.phase}, with"
            f" {size_text(oom.allocated_bytes)} allocated, limit {size_text(oom.limit_bytes)}",
        )
    if memory := measurement.memory:
        per = rank_word(study.question)
        needed = memory.allocated_bytes + memory.overhead_bytes
        part = f" ({size_text(memory.allocated_bytes)} allocated)" if memory.overhead_bytes else ""
        yield (
            "memory",
            f"{size_text(needed)} needed per {per}, of {limit}{part};"
            f" reserved {size_text(memory.reserved_bytes)}, on the device"
            f" {size_text(memory.device_bytes)}",
        )
        if memory.allocation_retries:
            yield "near misses", f"{memory.allocation_retries} allocations needed a second try"
        yield "peaks", _sizes(memory.by_phase)
        dry_run = probe.request.fidelity is Fidelity.PREDICTED
        yield "at the peak" if dry_run else "held", _sizes(memory.by_category)


def _emulation_facts(measurement: Measurement) -> Iterator[tuple[str, str]]:
    """Computing and exposed communication apart, of the steps with most micro-batches."""
    emulation = measurement.emulation
    if emulation is None:
        return
    count = max(emulation.compute_s)
    yield "computing", f"{time_text(median(emulation.compute_s[count]))} s of {_passes(count)}"
    if emulation.copies_left_out:
        yield "copies", f"are in that time: {emulation.copies_left_out}"
    if emulation.unpriced:
        yield "exposed", f"unknown: {emulation.unpriced}"
        return
    exposed = emulation.exposed_s[count]
    interval = f"80% interval {time_text(exposed.low_s)} to {time_text(exposed.high_s)}"
    rates = f", at rates of {emulation.priced_at[:10]}" if emulation.priced_at else ""
    yield "exposed", f"{time_text(exposed.value_s)} s of communication ({interval}){rates}"
    if emulation.stands_in:
        yield "device", "another kind than the cluster's: its time only predicts"


def _passes(count: int) -> str:
    return f"{count} micro-batch{'' if count == 1 else 'es'}"


def _time_facts(study: Study, probe: Probe, measurement: Measurement) -> Iterator[tuple[str, str]]:
    yield from _emulation_facts(measurement)
    time = step_time_of(study, probe, measurement)
    if time.value is None:
        return
    speed, per = speed_of(time, study.question), rank_word(study.question)
    yield "speed", f"{speed_text(speed.value)} tokens/s per {per} ({range_text(speed)})"
    interval = f"80% interval {time_text(time.low)} to {time_text(time.high)}"
    if not measurement.step_times_s:
        yield "step", f"{time_text(time.value)} s ({interval}), by arithmetic"
        return
    steps = " and ".join(
        f"{len(times)} of {_passes(count)}" for count, times in measurement.step_times_s.items()
    )
    yield "step", f"{time_text(time.value)} s ({interval}); steps timed: {steps}"
    losses = measurement.losses
    if losses:
        yield "loss", f"{losses[0]:.4f} in the first step, {losses[-1]:.4f} in the last"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items())


def _show_collectives(console: Console, measurement: Measurement) -> None:
    count = measurement.tracked_accumulation
    title = f"Collectives of rank 0 in one step of {_passes(count)}"
    console.print(Text(title, style="bold"))
    found = measurement.collectives
    overlap = [Column("hidden", [one.overlap for one in found])] if found[0].overlap else []
    unit, divisor = size_unit(max(one.bytes for one in found))
    columns = (
        Column("collective", [one.op for one in found]),
        Column("axis", [one.axis for one in found]),
        Column("phase", [one.phase for one in found]),
        *overlap,
        Column("calls", [str(one.count) for one in found], is_number=True),
        Column(unit, [size_number(one.bytes, divisor) for one in found], is_number=True),
    )
    console.print(table_of(columns, console.width))
