"""Answers one case, as plain JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.client.cases.reading import Case
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.framework import same_release
from tuner.core.quantity import UNKNOWN, Provenance, weakest
from tuner.cost.calibration import Calibration
from tuner.cost.prediction import Prediction, predict
from tuner.dryrun import Profile, told
from tuner.explain.english import say
from tuner.explain.memory import padding

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Results of the dry runs of a case's layout, and measured rates."""

    profile: Profile | None = None
    """Its memory; ``None`` when it was not dry-run, and memory is by arithmetic."""
    error: str = ""
    """Why its dry run failed, and nothing is predicted; empty when it did not."""
    accident: str = ""
    """What came between its dry run and the result, so that memory is by arithmetic."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the packages that made the dry run; empty when there is none."""
    calibration: Calibration | None = field(default=None, hash=False)
    """Rates measured on devices like the cluster's, where there are any."""
    wrong: str = ""
    """Why the settings train something else, where that was seen; else empty."""


def prediction_of(case: Case, finding: Finding) -> Prediction:
    """The case's cost; its finding has no error."""
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
        padded = padding(question.workload, question.cluster, case.settings)
        notes = [*notes_of(case, finding, found), *(say(one).removesuffix(".") for one in padded)]
    found_wrong = {"trains_wrongly": finding.wrong}
    return {**answer, **found_wrong, "notes": notes, "canonical": _knobs(case.settings)}


def unknown(reason: str) -> dict[str, Any]:
    """Makes the answer of a case about which nothing is predicted, with the reason."""
    nothing = UNKNOWN.as_dict()
    memory = {"allocated_gib": nothing, "reserved_gib": nothing, "device_gib": nothing}
    return {
        "fits": None,
        "memory": {
            **memory,
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
