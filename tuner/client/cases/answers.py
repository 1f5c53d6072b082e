"""Answers one case, or each line of a file of cases, as plain JSON values."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from tuner.client.cases.dry_runs import DryRuns, Finding
from tuner.client.cases.reading import Case, Stream, parse_line, read_batches, read_case
from tuner.client.values import NotCoveredError
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.framework import same_release
from tuner.core.quantity import UNKNOWN, Provenance, weakest
from tuner.cost.prediction import Prediction, predict
from tuner.dryrun import told
from tuner.errors import UsageError
from tuner.explain.english import say
from tuner.explain.memory import on_host, padding

GIB = 2**30


def prediction_of(case: Case, finding: Finding) -> Prediction:
    question = case.question
    return predict(
        question.workload,
        question.cluster,
        question.framework,
        case.settings,
        headroom=case.headroom,
        limit_bytes=case.limit_bytes,
        profile=finding.profile,
        calibration=finding.calibration,
        script=case.script,
    )


def answer_of(case: Case, finding: Finding) -> dict[str, Any]:
    """Computes what is added to a case: ``fits``, ``memory``, speed, ``provenance``, ``reason``,
    ``trains_wrongly``, ...

    When the case's dry run failed, or its memory is not covered, nothing of it is known, and
    ``reason`` says why.
    """
    found = None if finding.error else prediction_of(case, finding)
    if found is None or found.needed_bytes.value is None:
        answer = unknown(finding.error or (found.why if found else ""))
        notes = list(notes_of(case, finding, None))
    else:
        question = case.question
        provenance = found.allocated_bytes.provenance
        # on CPU ranks whose speed nobody measured it is the memory's, else the weakest of both
        if question.cluster.gpu.device is not Device.CPU or found.step_time_s.value is not None:
            provenance = weakest((provenance, found.step_time_s.provenance))
        answer = {
            "fits": found.fits,
            "memory": {
                "needed_gib": found.needed_bytes.scaled(1 / GIB).as_dict(),
                "allocated_gib": found.allocated_bytes.scaled(1 / GIB).as_dict(),
                "reserved_gib": found.reserved_bytes.scaled(1 / GIB).as_dict(),
                "device_gib": found.device_bytes.scaled(1 / GIB).as_dict(),
                "limit_gib": case.memory_limit_gib or found.limit_bytes / GIB,
                "breakdown": {name: size / GIB for name, size in found.breakdown.items()},
                "by_phase": {name: size / GIB for name, size in found.by_phase.items()},
                "context_gib": found.context_bytes / GIB,
                "communicator_gib": found.communicator_bytes / GIB,
                "basis": str(found.basis),
            },
            "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": found.step_time_s.as_dict(),
            "provenance": str(provenance),
            "reason": found.why,
        }
        # people read of padded experts with the explanation of memory
        known = (question.workload, question.cluster, case.settings)
        also = (*padding(*known), *on_host(*known))
        notes = [*notes_of(case, finding, found), *(say(one).removesuffix(".") for one in also)]
    rest = {"trains_wrongly": finding.wrong, "precision": str(case.question.workload.precision)}
    return {**answer, **rest, "notes": notes, "canonical": _knobs(case.settings)}


def unknown(reason: str) -> dict[str, Any]:
    """Makes the answer of a case about which nothing is predicted, with the reason."""
    nothing = UNKNOWN.as_dict()
    names = ("needed_gib", "allocated_gib", "reserved_gib", "device_gib")
    return {
        "fits": None,
        "memory": {
            **dict.fromkeys(names, nothing),
            "limit_gib": None,
            "breakdown": {},
            "by_phase": {},
            "context_gib": None,
            "communicator_gib": None,
            "basis": None,
        },
        "tokens_per_s_per_gpu": nothing,
        "step_time_s": nothing,
        "provenance": str(Provenance.UNKNOWN),
        "reason": reason,
        "trains_wrongly": "",
        "precision": None,
        "notes": [],
        "canonical": None,
    }


def notes_of(case: Case, finding: Finding, found: Prediction | None) -> tuple[str, ...]:
    """Sentences on knobs that cannot act, on the figures, and on the dry run."""
    told_of = () if finding.profile is None else told(finding.profile.notes)
    of_dry_run = (f"of the dry run: {note}" for note in told_of)
    figures = found.notes if found else ()
    accident = (f"not dry-run: {finding.accident}",) if finding.accident else ()
    # Dry runs run with what is installed, whatever versions are stated.
    ran = finding.versions
    others = (
        f"dry-run with {package} {ran[package]}, not {version} as stated"
        for package, version in case.question.framework.versions.items()
        if package in ran and not same_release(ran[package], version)
    )
    return (*case.notes, *figures, *accident, *others, *of_dry_run)


@lru_cache(maxsize=4096)
def _knobs(settings: Settings) -> Mapping[str, Any]:
    """Plain values; cases of a file share settings."""
    return settings.as_dict()


def answer_cases(stream: Stream, dry_runs: DryRuns) -> Iterator[dict[str, Any]]:
    """The answer to each line that is not blank: the case as it was written, and what is added.

    A line that is wrong is answered with ``error``, and nothing else is added.
    """
    number = 0
    for batch in read_batches(stream):
        # By line, what is echoed (nothing of one that is not JSON), and what it holds.
        lines: list[tuple[dict[str, Any], Case | UsageError]] = []
        for text in batch:
            number += 1
            if text.strip():
                values: dict[str, Any] = {}
                try:
                    values = parse_line(text, number)
                    lines.append((values, read_case(values)))
                except UsageError as error:
                    lines.append((values, error))
        dry_runs.prepare([found for _, found in lines if isinstance(found, Case)])
        for echo, found in lines:
            if isinstance(found, Case):
                answer = answer_of(found, dry_runs.of(found))
            elif isinstance(found, NotCoveredError):
                answer = unknown(found.allowed)
            else:
                errors = [one.as_dict() for one in found.errors]
                said = " ".join(found.errors[0].detail.split())
                answer = {"error": {"field": found.field, "message": said, "errors": errors}}
            yield {**echo, **answer}
