"""A question answered by another machine's service, while this one looks on."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.catalog.versions import version_table
from tuner.client.answered import Answered, Target, check_targets, launch_of, read_targets
from tuner.client.local import Caller, watch
from tuner.client.request import AUTO, RequestHere
from tuner.client.service import Service
from tuner.core.answer import Suggestion
from tuner.core.configuration import Settings
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity, Measurement
from tuner.core.study import (
    OPEN,
    Limits,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    SamplerName,
    Study,
    StudyState,
)
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    ServiceError,
    SpeedUnknownError,
    StoppedError,
    TrainsWronglyError,
    TunerError,
    UsageError,
)
from tuner.explain.known import check_limits
from tuner.results.points import question_text
from tuner.space import enumerate_space

# The error of each reason for which there is no answer; of others, that nothing ran.
KINDS: Mapping[str, type[TunerError]] = {
    one.kind: one for one in (NothingFitsError, SpeedUnknownError, TrainsWronglyError)
}


def answer_there(
    url: str,
    request: RequestHere,
    caller: Caller,
    *,
    write: Sequence[str] = (),
    key: str | None = None,
) -> Answered:
    """Have the question answered by the service at ``url``."""
    if request.script is not None:
        allowed = "is run on this machine alone: services take no scripts"
        raise UsageError("script", request.script.path, allowed)
    if request.probe_deadline_s is not None:
        allowed = "is for the service's workers to say: tuner worker --probe-deadline"
        raise UsageError("probe_deadline", request.probe_deadline_s, allowed)
    if request.launcher is not None:
        allowed = "is for the service's workers to say: tuner worker --launcher"
        raise UsageError("launcher", request.launcher, allowed)
    # The service has versions of its own, and names them: here packages need not be installed.
    newest = {name: package.newest for name, package in version_table().packages.items()}
    question = request.question({**newest, **installed_versions()})
    targets = read_targets(write, question, enumerate_space(question))
    with Service(url, key) as service:
        body = service.submit(body_of(request, question))
        for note in filter(None, (request.workload.note, *body.get("notes", ()))):
            caller.note(note)
        study = study_of(body, service.probes(_field(body, "study_id")))
        check_targets(targets, study.question, enumerate_space(study.question))
        text = question_text(study.question)
        caller.note(f"study {study.id} at {service.url}: {text}")
        if study.state in OPEN:
            reader = _Reader(service, study)
            with caller.signals() as signals, caller.progress_of(study) as progress:
                watch(reader.read, progress, lambda: bool(signals.noted) or reader.is_over)
                if not reader.is_over:
                    cancel = f"tuner studies cancel {study.id} --server {service.url}"
                    goes_on = f"study {study.id} goes on; to cancel it: {cancel}"
                    raise StoppedError(signals.noted[0], goes_on)
                study = reader.read()
                progress.show(study)
        body = service.study(study.id)
        check_limits(study_of(body, []), study.limits)
        return _answered(service, study, body, targets)


def body_of(request: RequestHere, question: Question) -> dict[str, Any]:
    values, cluster = question.as_dict(), request.cluster
    given, budget = request.model_fields_set, request.budget
    is_spelled = isinstance(cluster, str) and cluster.lower() != "local"
    stack, sampler = request.framework, request.sampler
    body = {
        "workload": values["workload"],
        "cluster": cluster if is_spelled else values["cluster"],
        "framework": {"name": stack.name, "versions": dict(stack.versions)},
        "knobs": values["knobs"],
        "fidelity": request.fidelity or AUTO,
        "budget": {"max_probes": budget.max_probes, "wall_s": budget.wall_s, "gpu_s": budget.gpu_s},
        "tolerance": request.tolerance,
        "headroom": request.headroom if "headroom" in given else None,
        "memory_limit_gib": request.memory_limit_gib,
        "pool": request.pool,
        "labels": dict(request.labels) or None,
        "sampler": None if sampler is SamplerName.COST_MODEL else sampler,
        "replace": request.replace or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def study_of(body: Mapping[str, Any], probes: list[dict[str, Any]]) -> Study:
    """The study that a service sent, with what is shown of it."""
    try:
        limits = Limits.from_dict(body["terms"])
        return Study(
            id=body["study_id"],
            question=Question.from_dict(body["question"]),
            limits=limits,
            state=StudyState(body["state"]),
            reason=body["reason"],
            revision=body["revision"],
            labels=body.get("labels", {}),
            probes=tuple(_probe(values) for values in probes),
            probes_before=body["probes_before"],
            created_at=body["created_at"],
            asked_at=body["asked_at"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error


def _probe(values: Mapping[str, Any]) -> Probe:
    found = values["measurement"]
    measurement = None if found is None else Measurement.from_dict(found)
    if measurement is not None and measurement.emulation is not None:
        # The service has priced it at its rates; without phases it is not priced again here.
        emulation = replace(measurement.emulation, phases_s={})
        measurement = replace(measurement, emulation=emulation)
    return Probe(
        id=values["number"],
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


class _Reader:
    """Reads a study again when an event has come; a thread waits for events."""

    def __init__(self, service: Service, study: Study) -> None:
        self._service = service
        self._study, self._limits = study, study.limits
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._error: TunerError | None = None
        threading.Thread(target=self._listen, name="events", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Tells whether the study is at its end, and was read there."""
        return self._study.state not in OPEN

    def read(self) -> Study:
        ended = self._ended.is_set()
        if self._error is not None:
            raise self._error
        if ended or self._changed.is_set():
            self._changed.clear()
            study_id = self._study.id
            probes = self._service.probes(study_id)
            self._study = study_of(self._service.study(study_id), probes)
            check_limits(self._study, self._limits)
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
    """Makes an answer of the service's, with files of its making."""
    shown, none = _field(body, "suggestion"), _field(body, "no_answer")
    if shown is None:
        raise ServiceError(f"study {study.id} is {body['state']}, and has no suggestion")
    if targets and none is None:
        settings = Settings.from_dict(shown["best"]["settings"])
        limits = body.get("terms_id")
        files = {
            str(one.path): service.export(study.id, one.format_name, str(one.path), limits)
            for one in targets
        }
        formats = {str(one.path): one.format_name for one in targets}
        shown = {**shown, "launch": launch_of(study.question, settings, files, formats)}
    try:
        suggestion = Suggestion.from_dict(shown)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error
    why = none and KINDS.get(_field(none, "kind"), ProbeError)(_field(none, "message"))
    return Answered(
        study=study,
        suggestion=suggestion,
        as_json=shown,
        why_none=why,
        targets=targets,
    )


def _field(body: Mapping[str, Any], name: str) -> Any:
    try:
        return body[name]
    except KeyError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ServiceError:
    what = f"{type(error).__name__}: {error}"
    return ServiceError(f"this is no tuner service, or one of another version: {what}")
