"""``tuner suggest --server``: another machine's service answers, and this one looks on."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from tuner.answering import check_terms
from tuner.catalog.versions import version_table
from tuner.cli.answers import Answered, show_answered
from tuner.cli.asked import if_given, read_budget, read_question
from tuner.cli.errors import StoppedError
from tuner.cli.follow import watch
from tuner.cli.options import SuggestAsked
from tuner.cli.progress import progress_of
from tuner.cli.service import Service
from tuner.cli.targets import Target, check_targets, read_targets
from tuner.cli.units import read_share, read_size
from tuner.cli.words import question_text
from tuner.cli.worker import Signals
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    ServiceError,
    SpeedUnknownError,
    TunerError,
    UsageError,
)
from tuner.framework import installed_versions, parse_stated_versions
from tuner.launch import launch_of
from tuner.measurement import Fidelity, Measurement
from tuner.request import AUTO
from tuner.settings import Settings
from tuner.space import enumerate_space
from tuner.study import OPEN, Probe, ProbeRequest, ProbeState, Question, Study, StudyState, Terms
from tuner.suggestion import Suggestion

KINDS: Mapping[str, type[TunerError]] = {
    "nothing_fits": NothingFitsError,
    "speed_unknown": SpeedUnknownError,
}
"""The error of each reason for which there is no answer; of others, that nothing ran."""


def run(asked: SuggestAsked, url: str) -> int:
    """Have the question answered by the service at ``url``; the exit code.

    Raises:
        UsageError: something about the question is wrong.
        ServiceError: the service cannot be reached, or refused.
        StoppedError: a signal asked this process to end. The study goes on.
    """
    if asked.db is not None:
        raise UsageError("db", asked.db, "is not applied with --server: the service has its own")
    question = read_question(asked, _versions())
    targets = read_targets(asked.write or (), question, enumerate_space(question))
    request = request_of(asked, question)
    with Service(url) as service:
        body = service.submit(request)
        for note in body.get("notes", ()):
            typer.echo(note, err=True)
        study = study_of(body, service.probes(body["study_id"]))
        check_targets(targets, study.question, enumerate_space(study.question))
        text = question_text(study.question)
        typer.echo(f"study {study.id} at {service.url}: {text}", err=True)
        if study.state in OPEN:
            study = _followed(service, study)
        body = service.study(study.id)
        check_terms(study_of(body, []), study.terms)
        answered = _answered(service, study, body, targets)
    return show_answered(answered, as_json=asked.json)


def request_of(asked: SuggestAsked, question: Question) -> dict[str, Any]:
    """The body of ``POST /tune``.

    Raises:
        UsageError: an option cannot be read.
    """
    budget = read_budget(asked)
    limit_bytes = if_given(read_size, "memory_limit", asked.memory_limit)
    values = question.as_dict()
    cluster = asked.cluster.strip()
    is_here = cluster.lower() == "local" or cluster.lower().endswith((".toml", ".json"))
    request = {
        "workload": values["workload"],
        "cluster": values["cluster"] if is_here else cluster,
        "framework": {
            "name": asked.framework,
            "versions": parse_stated_versions(asked.framework_version or ()),
        },
        "knobs": values["knobs"],
        "fidelity": _fidelity(asked.fidelity),
        "budget": {
            "max_probes": budget.get("max_probes"),
            "wall_s": budget["wall_s"],
            "gpu_s": budget["device_s"],
        },
        "tolerance": budget["tolerance"],
        "headroom": if_given(read_share, "headroom", asked.headroom),
        "memory_limit_gib": None if limit_bytes is None else limit_bytes / 2**30,
        "pool": asked.pool,
        "replace": asked.replace or None,
    }
    return {name: value for name, value in request.items() if value is not None}


def study_of(body: Mapping[str, Any], probes: list[dict[str, Any]]) -> Study:
    """The study that a service sent, with what is shown of it.

    Raises:
        ServiceError: it is of a version that this one cannot read.
    """
    try:
        terms = Terms.from_dict(body["terms"])
        return Study(
            id=body["study_id"],
            question=Question.from_dict(body["question"]),
            terms=terms,
            state=StudyState(body["state"]),
            reason=body["reason"],
            revision=body["revision"],
            probes=tuple(_probe(values) for values in probes),
            probes_before=body["probes_before"],
            created_at=body["created_at"],
            asked_at=body["asked_at"],
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise _unreadable(error) from error


def _probe(values: Mapping[str, Any]) -> Probe:
    found = values["measurement"]
    measurement = None if found is None else Measurement.from_dict(found)
    if measurement is not None and measurement.emulation is not None:
        # The service has priced it at its rates; without phases it is not priced again here.
        emulation = replace(measurement.emulation, phases_s={})
        measurement = replace(measurement, emulation=emulation)
    return Probe(
        id=values["id"],
        request=ProbeRequest(
            settings=Settings.from_dict(values["settings"]),
            fidelity=Fidelity(values["fidelity"]),
            repetition=values["repetition"],
            accumulation_counts=tuple(values["accumulation_counts"]),
        ),
        state=ProbeState(values["state"]),
        memory_limit_bytes=values["memory_limit_bytes"],
        measurement=measurement,
        finished_at=values["finished_at"],
    )


def _followed(service: Service, study: Study) -> Study:
    """The study at its end; shown as it gets there."""
    reader = _Reader(service, study)
    with Signals() as signals, progress_of(study) as progress:
        watch(reader, progress, lambda: bool(signals.noted) or reader.is_over)
        if reader.is_over:
            study = reader.read()
            progress.show(study)
            return study
    cancel = f"tuner studies cancel {study.id} --server {service.url}"
    raise StoppedError(signals.noted[0], f"study {study.id} goes on; to cancel it: {cancel}")


class _Reader:
    """Reads a study again when an event has come; a thread waits for events."""

    def __init__(self, service: Service, study: Study) -> None:
        self._service = service
        self._study, self._terms = study, study.terms
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._error: TunerError | None = None
        threading.Thread(target=self._listen, name="events", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the study is at its end, and was read there."""
        return self._study.state not in OPEN

    def read(self) -> Study:
        """The study as it is now.

        Raises:
            ServiceError: the service cannot be reached any more.
            ProbeError: somebody asked the question on other terms meanwhile.
        """
        ended = self._ended.is_set()
        if self._error is not None:
            raise self._error
        if ended or self._changed.is_set():
            self._changed.clear()
            study_id = self._study.id
            probes = self._service.probes(study_id)
            self._study = study_of(self._service.study(study_id), probes)
            check_terms(self._study, self._terms)
        if ended and self._study.state in OPEN:
            raise ServiceError(f"study {self._study.id} goes on, and its events have ended")
        return self._study

    def _listen(self) -> None:
        try:
            for _ in self._service.events(self._study.id):
                self._changed.set()
        except TunerError as error:
            self._error = error
        finally:
            self._ended.set()


def _answered(
    service: Service, study: Study, body: Mapping[str, Any], targets: tuple[Target, ...]
) -> Answered:
    """What the service answers, with files of its making."""
    shown, none = body["suggestion"], body["no_answer"]
    if shown is None:
        raise ServiceError(f"study {study.id} is {body['state']}, and has no suggestion")
    if targets and none is None:
        terms = body.get("terms_id")
        files = {str(one.path): service.export(study.id, one.format_name, terms) for one in targets}
        shown = {**shown, "launch": launch_of(study.question, files)}
    try:
        suggestion = Suggestion.from_dict(shown)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise _unreadable(error) from error
    why = none and KINDS.get(none["kind"], ProbeError)(none["message"])
    return Answered(
        study=study, suggestion=suggestion, as_json=shown, why_none=why, has_targets=bool(targets)
    )


def _unreadable(error: Exception) -> ServiceError:
    return ServiceError(f"the service is of another version: {type(error).__name__}: {error}")


def _versions() -> dict[str, str]:
    """Of packages that need not be here: the service has its own, and says which."""
    newest = {name: package.newest for name, package in version_table().packages.items()}
    return {**newest, **installed_versions()}


def _fidelity(text: str | None) -> str:
    known = (AUTO, *map(str, Fidelity))
    if text is not None and text not in known:
        raise UsageError("fidelity", text, f"must be one of {', '.join(known)}")
    return AUTO if text is None else text
