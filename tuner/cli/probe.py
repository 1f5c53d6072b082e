"""``tuner probe``: run one settings, and show what it measured."""

from collections.abc import Sequence
from dataclasses import replace

import typer

from tuner.cli.console import stdout_console
from tuner.cli.details import show_probe
from tuner.cli.errors import print_json, report
from tuner.cli.options import ProbeAsked
from tuner.cli.progress import Terminal
from tuner.cli.values import read_options
from tuner.client.advance import kept_dry_run, measurement_of, why_not_here
from tuner.client.local import follow, standing_text
from tuner.client.place import Placed, place_here
from tuner.client.worker_process import worker_argv
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import (
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
)
from tuner.errors import NothingFitsError, ProbeError, StoreError
from tuner.planner.probes import fits, probe_as_dict
from tuner.planner.timing import first_counts
from tuner.space import check_settings, settings_notes
from tuner.store import Store, open_store

# Times that a probe is entered again because the study moved on meanwhile.
TRIES = 20


def run(asked: ProbeAsked) -> int:
    """Run the probe; the exit code: 0 it ran and fits, 1 it failed, 3 it does not fit.

    Raises:
        UsageError: something about the question or the settings is wrong.
        ProbeError: the probe was not run.
    """
    placed = place_here(read_options(asked), asked.db)
    for note in placed.notes:
        typer.echo(note, err=True)
    settings = _read_settings(placed.question, asked.settings)
    with open_store(asked.db) as store:
        study, found = _probed(store, placed, settings)
    return _show(replace(study, terms=placed.terms), found, as_json=asked.json)


def _probed(store: Store, placed: Placed, settings: Settings) -> tuple[Study, Probe]:
    """The study, and its probe of the settings, which is run now unless it is known already."""
    fidelity, known = placed.terms.fidelity, store.find(placed.question)
    is_dry_run = fidelity is Fidelity.PREDICTED
    if is_dry_run:
        if known and (found := _done_before(known, settings)):
            typer.echo(standing_text(known, answered=True), err=True)
            return known, found
        if why := why_not_here(placed.question, settings):
            raise ProbeError(f"these settings cannot be dry-run: {why}")
    # A study that is there keeps its terms: one probe under a limit of its own must not
    # change the study's answer, nor end the search of another command.
    study = store.ask(placed.question, known.terms if known else placed.terms)
    typer.echo(standing_text(study, answered=False), err=True)
    limit_bytes = placed.terms.limit_bytes(placed.question.cluster)
    entered = _enter(store, study, settings, fidelity, limit_bytes)
    if entered.state is ProbeState.DONE:
        reason, queued = "the probe that was asked for was known", {StudyState.QUEUED}
        store.move(study.id, StudyState.DONE, reason, expect=queued)
        return store.study(study.id), entered
    deadline_s = placed.probe_deadline_s
    argv = worker_argv(study.id, queued_only=str(fidelity), probe_deadline_s=deadline_s)
    study = follow(store, study, Terminal(), argv)
    return study, next((probe for probe in study.probes if probe.id == entered.id), entered)


def _done_before(study: Study, settings: Settings) -> Probe | None:
    """The dry run of the settings, which would show the same if it were made again."""
    for probe in study.at(Fidelity.PREDICTED).probes:
        measurement = probe.measurement
        if probe.request.settings == settings and measurement and measurement.memory:
            return probe
    return None


def _read_settings(question: Question, text: str) -> Settings:
    """The settings that were written, with dead knobs collapsed, and a word about these."""
    written = parse_settings(text)
    given = {part.partition("=")[0].strip() for part in text.split(",")}
    settings = check_settings(question, written, given=given)
    for note in settings_notes(question, written, given=given):
        typer.echo(f"note: {note.why}", err=True)
    return settings


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
        request = _request(study.question, settings, fidelity, same)
        if entered := _entered(store, study, request, limit_bytes):
            return entered
        study = store.study(study.id)
    raise StoreError(f"study {study.id} is too busy to enter a probe; try again")


def _request(
    question: Question, settings: Settings, fidelity: Fidelity, same: Sequence[Probe]
) -> ProbeRequest:
    counts = first_counts(question, settings)
    return ProbeRequest(
        settings=settings,
        fidelity=fidelity,
        repetition=max((probe.request.repetition + 1 for probe in same), default=0),
        accumulation_counts=() if fidelity is Fidelity.PREDICTED else counts,
    )


def _entered(store: Store, study: Study, request: ProbeRequest, limit_bytes: int) -> Probe | None:
    if kept := kept_dry_run(store, study.question, request):
        found = measurement_of(study.question, request.settings, kept)
        return store.enter_probe(study.id, study.revision, request, limit_bytes, found)
    return store.enter_probe(study.id, study.revision, request, limit_bytes)


def _show(study: Study, probe: Probe, *, as_json: bool) -> int:
    measurement = probe.measurement
    if measurement is None:
        raise ProbeError(f"the probe was not run: study {study.id} is {study.state} {study.reason}")
    if as_json:
        print_json({"study_id": study.id, "probe": probe_as_dict(study, probe)})
    else:
        show_probe(stdout_console(), study, probe)
    if fits(study, measurement) is False:
        why = measurement.detail or "they need more than the limit"
        return report(NothingFitsError(f"these settings do not fit: {why}"), as_json=False)
    if measurement.outcome is not Outcome.OK:
        failure = ProbeError(f"the probe ended as {measurement.outcome}: {measurement.detail}")
        return report(failure, as_json=False)
    return 0
