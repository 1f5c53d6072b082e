"""Many cases at once: settings of any workload on any cluster, and what is predicted of them.

A case is read strictly (:mod:`~tuner.client.cases.reading`), dry runs are looked up or made
(:mod:`~tuner.client.cases.dry_runs`), and answers go out from here in the order of the cases, with
the reason where nothing is predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.client.cases.dry_runs import DryRuns, Finding, Policy
from tuner.client.cases.reading import Case, Stream, parse_line, read_batches, read_case
from tuner.client.values import NotCoveredError
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.evaluation import GIB, Evaluation
from tuner.core.framework import same_release
from tuner.core.measurement import Basis
from tuner.core.quantity import UNKNOWN, Provenance, Quantity, weakest
from tuner.cost import prediction as cost
from tuner.dryrun import told
from tuner.errors import UsageError
from tuner.explain.memory import on_host, padding

__all__ = [
    "Case",
    "DryRuns",
    "Finding",
    "NotCoveredError",
    "Policy",
    "Prediction",
    "answer_cases",
    "answer_of",
    "notes_of",
    "prediction_of",
    "read_case",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of one configuration, on the rank that needs most."""

    settings: Settings | None = None
    """The settings with inactive knobs collapsed; ``None`` of what is not covered."""
    fits: bool | None = None
    """Whether they are expected to run; ``None`` where nothing is known."""
    needed_gib: Quantity = UNKNOWN
    """What must be free of a device."""
    allocated_gib: Quantity = UNKNOWN
    reserved_gib: Quantity = UNKNOWN
    """Peak held by the caching allocator, part of it free."""
    device_gib: Quantity = UNKNOWN
    """What the device's own tool would show."""
    limit_gib: float | None = None
    breakdown_gib: Mapping[str, float] = field(default_factory=dict)
    """Memory at the peak by category: parameters, gradients, optimizer, ..."""
    by_phase_gib: Mapping[str, float] = field(default_factory=dict)
    context_gib: float | None = None
    communicator_gib: float | None = None
    basis: Basis | None = None
    tokens_per_s_per_gpu: Quantity = UNKNOWN
    """Tokens of the global batch per second of its step and GPU."""
    step_time_s: Quantity = UNKNOWN
    provenance: Provenance = Provenance.UNKNOWN
    """The weakest of the memory's and the speed's."""
    precision: str | None = None
    """Number formats for which it holds, such as ``bf16``; ``None`` of what is not covered."""
    reason: str = ""
    """Why they do not fit, or why a figure is unknown; empty where all is well."""
    trains_wrongly: str = ""
    """Why they train something else, where that was seen in these versions; else empty."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the figures."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values, as ``tuner predict --json`` prints them."""
        return {
            "fits": self.fits,
            "memory": {
                "needed_gib": self.needed_gib.as_dict(),
                "allocated_gib": self.allocated_gib.as_dict(),
                "reserved_gib": self.reserved_gib.as_dict(),
                "device_gib": self.device_gib.as_dict(),
                "limit_gib": self.limit_gib,
                "breakdown": dict(self.breakdown_gib),
                "by_phase": dict(self.by_phase_gib),
                "context_gib": self.context_gib,
                "communicator_gib": self.communicator_gib,
                "basis": self.basis and str(self.basis),
            },
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": self.step_time_s.as_dict(),
            "provenance": str(self.provenance),
            "reason": self.reason,
            "trains_wrongly": self.trains_wrongly,
            "precision": self.precision,
            "notes": list(self.notes),
            "canonical": self.settings and _knobs(self.settings),
        }


# Fields that an evaluation has too.
_SAME = (
    *("fits", "basis", "tokens_per_s_per_gpu", "step_time_s", "breakdown_gib", "by_phase_gib"),
    *("needed_gib", "allocated_gib", "reserved_gib", "device_gib"),
)


def prediction_of(case: Case, finding: Finding) -> Evaluation:
    question = case.question
    return cost.predict(
        *question.job,
        case.settings,
        headroom=case.headroom,
        limit_bytes=case.limit_bytes,
        profile=finding.profile,
        calibration=finding.calibration,
        script=case.script,
    )


def answer_of(case: Case, finding: Finding) -> Prediction:
    """Predicts a case.

    When the case's dry run failed, or its memory is not covered, nothing of it is known, and
    ``reason`` says why.
    """
    question = case.question
    rest: dict[str, Any] = {
        "settings": case.settings,
        "trains_wrongly": finding.wrong,
        "precision": str(question.workload.precision),
    }
    found = None if finding.error else prediction_of(case, finding)
    if found is None or found.needed_bytes.value is None:
        why = finding.error or (found.why if found else "")
        return Prediction(reason=why, notes=notes_of(case, finding, None), **rest)
    provenance = found.allocated_bytes.provenance
    # on CPU ranks whose speed nobody measured it is the memory's, else the weakest of both
    if question.cluster.gpu.device is not Device.CPU or found.step_time_s.value is not None:
        provenance = weakest((provenance, found.step_time_s.provenance))
    # people read of padded experts with the explanation of memory
    known = (question.workload, question.cluster, case.settings)
    also = (str(one).removesuffix(".") for one in (*padding(*known), *on_host(*known)))
    return Prediction(
        **{name: getattr(found, name) for name in _SAME},
        limit_gib=case.memory_limit_gib or found.limit_gib,
        context_gib=found.context_bytes / GIB,
        communicator_gib=(found.outside_bytes - found.context_bytes) / GIB,
        provenance=provenance,
        reason=found.why,
        notes=(*notes_of(case, finding, found), *also),
        **rest,
    )


def notes_of(case: Case, finding: Finding, found: Evaluation | None) -> tuple[str, ...]:
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
                answer = answer_of(found, dry_runs.of(found)).as_dict()
            elif isinstance(found, NotCoveredError):
                answer = Prediction(reason=found.allowed).as_dict()
            else:
                errors = [one.as_dict() for one in found.errors]
                said = " ".join(found.errors[0].detail.split())
                answer = {"error": {"field": found.field, "message": said, "errors": errors}}
            yield {**echo, **answer}
