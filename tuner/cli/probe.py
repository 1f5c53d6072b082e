"""``tuner probe``: run one configuration, and show what it measured or why it failed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import typer
from rich.console import Console
from rich.text import Text

from tuner.cli.console import Column, print_facts, stdout_console, table_of
from tuner.cli.errors import print_json, report
from tuner.cli.options import ProbeAsked
from tuner.cli.progress import terminal
from tuner.cli.render import show_logs
from tuner.cli.values import read_options
from tuner.client.advance import kept_dry_run, measurement_of, why_not_here
from tuner.client.local import follow, status_text
from tuner.client.place import NO_RING_PROBE, Placed, place_here
from tuner.client.worker_process import worker_argv
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.core.words import probe_name, rank_word
from tuner.errors import NothingFitsError, ProbeError, StoreError, UsageError
from tuner.planner.probes import (
    FIDELITIES,
    at_todays_rates,
    attention_text,
    clocks_text,
    fits,
    passes_text,
    probe_as_dict,
    time_facts,
)
from tuner.planner.timing import first_counts
from tuner.space import check_settings, settings_notes
from tuner.store import Store, open_store
from tuner.text import (
    duration_text,
    moment_text,
    show,
    size_number,
    size_text,
    size_unit,
)

# Times that a probe is entered again because the study moved on meanwhile.
TRIES = 20


def run(asked: ProbeAsked) -> int:
    """Run the probe; the exit code: 0 it ran and fits, 1 it failed, 3 it does not fit."""
    placed = place_here(read_options(asked), asked.db)
    for note in placed.notes:
        typer.echo(note, err=True)
    written = parse_settings(asked.settings)
    given = {part.partition("=")[0].strip() for part in asked.settings.split(",")}
    settings = check_settings(placed.question, written, given=given)
    if settings.cp_size > 1 and placed.question.script is None:
        raise UsageError("cp_size", settings.cp_size, NO_RING_PROBE)
    for inactive in settings_notes(placed.question, written, given=given):
        typer.echo(f"note: {inactive.why}", err=True)
    with open_store(asked.db) as store:
        study, probe = _probed(store, placed, settings)
    study, measurement = replace(study, limits=placed.limits), probe.measurement
    if measurement is None:
        raise ProbeError(f"the probe was not run: study {study.id} is {study.state} {study.reason}")
    if asked.json:
        print_json({"study_id": study.id, "probe": probe_as_dict(study, probe)})
    else:
        show_probe(stdout_console(), study, probe)
    if fits(study, measurement) is False:
        why = measurement.detail or "they need more than the limit"
        return report(NothingFitsError(f"these settings do not fit: {why}"), as_json=False)
    if measurement.outcome is not Outcome.OK:
        ended = f"{measurement.outcome.words}: {measurement.detail}"
        return report(ProbeError(f"the probe ended as {ended}"), as_json=False)
    return 0


def _probed(store: Store, placed: Placed, settings: Settings) -> tuple[Study, Probe]:
    """The study, and its probe of the settings, which is run now unless it is known already."""
    fidelity, known = placed.limits.fidelity, store.find(placed.question)
    if fidelity is Fidelity.PREDICTED:
        # Made again, a dry run of the same configuration would show the same.
        for probe in known.at(fidelity).probes if known else ():
            found = probe.measurement
            if known and probe.request.settings == settings and found and found.memory:
                typer.echo(status_text(known, answered=True), err=True)
                return known, probe
        if why := why_not_here(placed.question, settings):
            raise ProbeError(f"these settings cannot be dry-run: {why}")
    # A study that is there keeps its limits: one probe under a limit of its own must not
    # change the study's answer, nor end the search of another command.
    study = store.ask(placed.question, known.limits if known else placed.limits)
    typer.echo(status_text(study, answered=False), err=True)
    limit_bytes = placed.limits.limit_bytes(placed.question.cluster)
    entered = _enter(store, study, settings, fidelity, limit_bytes)
    if entered.state is ProbeState.DONE:
        reason, queued = "the probe that was asked for was known", {StudyState.QUEUED}
        store.move(study.id, StudyState.DONE, reason, expect=queued)
        return store.study(study.id), entered
    argv = worker_argv(study.id, placed.probing, queued_only=str(fidelity))
    study = follow(store, study, terminal(), argv)
    return study, next((probe for probe in study.probes if probe.id == entered.id), entered)


def _enter(
    store: Store, study: Study, settings: Settings, fidelity: Fidelity, limit_bytes: int
) -> Probe:
    """Queue the probe, unless an interrupted one of the same settings and limit waits already.

    A dry run that is kept is entered as done.
    """
    for _ in range(TRIES):
        probes = study.at(fidelity).probes
        same = [probe for probe in probes if probe.request.settings == settings]
        for probe in same:
            if probe.state is not ProbeState.DONE and probe.memory_limit_bytes == limit_bytes:
                return probe
        counts = first_counts(study.question, settings)
        request = ProbeRequest(
            settings=settings,
            fidelity=fidelity,
            repetition=max((probe.request.repetition + 1 for probe in same), default=0),
            accumulation_counts=() if fidelity is Fidelity.PREDICTED else counts,
        )
        kept = kept_dry_run(store, study.question, request)
        done = (measurement_of(study.question, settings, kept),) if kept else ()
        if found := store.enter_probe(study.id, study.revision, request, limit_bytes, *done):
            return found
        study = store.study(study.id)
    raise StoreError(f"study {study.id} is too busy to enter a probe; try again")


def show_probe(console: Console, study: Study, probe: Probe) -> None:
    """Configuration, outcome and all that was measured; communication at today's rates."""
    measurement = at_todays_rates(study, probe)
    assert measurement is not None
    console.print()
    print_facts(console, _facts(study, probe, measurement))
    if measurement.collectives:
        console.print()
        passes = passes_text(measurement.tracked_accumulation)
        title = f"Collectives of rank 0 in one step of {passes}"
        console.print(Text(title, style="bold"))
        found = measurement.collectives
        unit, divisor = size_unit(max(one.bytes for one in found))
        columns = [
            Column("collective", [one.op for one in found]),
            Column("axis", [one.axis for one in found]),
            Column("phase", [one.phase for one in found]),
            Column("calls", [str(one.count) for one in found], is_number=True),
            Column(unit, [size_number(one.bytes, divisor) for one in found], is_number=True),
        ]
        if found[0].overlap:
            columns.insert(3, Column("hidden", [one.overlap for one in found]))
        console.print(table_of(columns, console.width))
    show_logs(console, probe)


def _facts(study: Study, probe: Probe, measurement: Measurement) -> Iterator[tuple[str, str]]:
    settings = probe.request.settings.as_dict()
    yield "settings", ", ".join(f"{k} {show(v)}" for k, v in settings.items())
    again = f" (repetition {probe.request.repetition})" if probe.request.repetition else ""
    noun, number = probe_name(probe).rsplit(" ", 1)
    yield noun, f"{number}{again} of {study.id}, {moment_text(probe.finished_at or '')} UTC"
    if (fidelity := probe.request.fidelity) is not Fidelity.MEASURED:
        yield "fidelity", f"{fidelity}: {FIDELITIES[fidelity]}"
    yield "outcome", f"{measurement.outcome.words}{f': {d}' if (d := measurement.detail) else ''}"
    yield from _memory_facts(study, probe, measurement)
    yield from time_facts(study, probe, measurement)
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
    limit = size_text(study.limits.limit_bytes(study.question.cluster))
    if oom := measurement.oom:
        yield (
            "memory",
            f"more than {size_text(oom.needed_bytes)}: rank {oom.rank} asked for"
            f" {size_text(oom.requested_bytes)} in {oom.phase}, with"
            f" {size_text(oom.allocated_bytes)} allocated, limit {size_text(oom.limit_bytes)}",
        )
    if memory := measurement.memory:
        per = rank_word(study.question)
        part = f" ({size_text(memory.allocated_bytes)} allocated)" if memory.overhead_bytes else ""
        yield (
            "memory",
            f"{size_text(memory.needed_bytes)} needed per {per}, of {limit}{part};"
            f" reserved {size_text(memory.reserved_bytes)}, on the device"
            f" {size_text(memory.device_bytes)}",
        )
        if memory.allocation_retries:
            yield "near misses", f"{memory.allocation_retries} allocations needed a second try"
        yield "peaks", _sizes(memory.by_phase)
        dry_run = probe.request.fidelity is Fidelity.PREDICTED
        yield "at the peak" if dry_run else "held", _sizes(memory.by_category)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items())
