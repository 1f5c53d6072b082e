"""Advances a study without torch or devices: enters kept dry runs, and ends it."""

from collections import Counter
from collections.abc import Callable, Mapping

from tuner import planner
from tuner.core.configuration import Settings
from tuner.core.measurement import Collective, Fidelity, Measurement, Memory, Outcome
from tuner.core.study import OPEN, Limits, ProbeRequest, Question, Study, StudyState
from tuner.cost.prediction import predict
from tuner.dryrun import DryRun, DryRunPlan, NotDryRunError, dry_run_versions, plan_dry_runs
from tuner.planner import Stop, next_probe, what_is_needed
from tuner.store import Store


def advance_from_cache(
    store: Store,
    study: Study,
    installed: Mapping[str, str] | None = None,
    view: Callable[[Study], Study] = lambda study: study,
) -> Study:
    """Enter the dry runs that the study wants and that are kept already; the study after that.

    A study that is to be probed wants some only in the ``view`` of one that is predicted.
    """
    limit_bytes = study.limits.limit_bytes(study.question.cluster)
    while study.state in OPEN:
        request = next_probe(view(study))
        if not isinstance(request, ProbeRequest):
            break
        kept = kept_dry_run(store, study.question, request, installed)
        if kept is None:
            break
        found = measurement_of(study.question, request.settings, kept)
        store.enter_probe(study.id, study.revision, request, limit_bytes, found)
        study = store.study(study.id)
    return study


def conclude(store: Store, study: Study, *, here: bool = True) -> Study | None:
    """End a study that no worker is at, if nothing more can be dry-run for it here, or nothing more
    is worth probing.

    Returns:
        The study at its end; ``None`` when something is wanted, or it moved on meanwhile.
    """
    if study.state is not StudyState.QUEUED:
        return None
    end = None
    if study.limits.fidelity is Fidelity.PREDICTED:
        end = end_of(study, here=here)
    elif study.probes and isinstance(plan := next_probe(study), Stop) and not plan.failure:
        end = StudyState.DONE, plan.reason
    if end is None:
        return None
    moved = store.move(study.id, *end, expect={study.state}, revision=study.revision)
    return store.study(study.id) if moved else None


def end_of(study: Study, *, here: bool = True) -> tuple[StudyState, str] | None:
    """How a predicted study ends now, and why; ``None`` while a dry run of it can be made."""
    plan = next_probe(study)
    if isinstance(plan, Stop):
        if plan.failure:
            return StudyState.FAILED, plan.failure
        return StudyState.DONE, plan.reason
    if not isinstance(plan, ProbeRequest) or not here:
        return None
    why = why_not_here(study.question, plan.settings)
    if not why:
        return None
    if need := what_is_needed(study):
        return StudyState.FAILED, f"no settings are predicted to fit, by arithmetic: {need}"
    return StudyState.DONE, why


def why_not_here(question: Question, settings: Settings) -> str:
    """Why the layout cannot be dry-run with what is installed; empty if it can."""
    try:
        plan_here(question, settings)
    except NotDryRunError as error:
        return str(error)
    return ""


def plan_here(question: Question, settings: Settings) -> DryRunPlan:
    """The dry runs of the settings' class, in the versions that are installed.

    Versions that the question states decide what the knobs do. They cannot decide what runs.
    """
    return plan_dry_runs(*question.job, settings, dry_run_versions())


def kept_dry_run(
    store: Store,
    question: Question,
    request: ProbeRequest,
    installed: Mapping[str, str] | None = None,
) -> DryRun | None:
    """The dry run that a probe asks for, if one is kept that holds on this machine.

    What is not installed, torch above all, counts as in the versions that the question states:
    whoever shares the database may have made its dry runs with these.
    """
    if request.fidelity is not Fidelity.PREDICTED:
        return None
    found_here = dry_run_versions() if installed is None else installed
    versions = {**question.framework.versions, **found_here}
    try:
        key = plan_dry_runs(*question.job, request.settings, versions).key
    except NotDryRunError:
        return None
    found = store.dry_runs([key]).get(key)
    return found if found is not None and found.holds_here else None


def measurement_of(
    question: Question, settings: Settings, dry_run: DryRun, *, wall_s: float = 0.0
) -> Measurement:
    """Makes a probe's result for a configuration from a dry run of its layout."""
    profile = dry_run.profile
    if profile is None:
        outcome = Outcome.INVALID if dry_run.is_refusal else Outcome.CRASHED
        outcome = Outcome.TIMEOUT if dry_run.is_late else outcome
        # without the error's type where the outcome says it already
        kind, colon, text = dry_run.error.partition(": ")
        return Measurement(
            outcome=outcome,
            detail=text if colon and kind.lower() == outcome else dry_run.error,
            wall_s=wall_s,
            dry_run=dry_run.key if dry_run.is_kept else "",
        )
    # Tensors by the dry run; what is beside them by arithmetic.
    predicted = predict(*question.job, settings, profile=profile)
    allocated = int(predicted.allocated_bytes.value or 0)
    memory = Memory(
        allocated_bytes=allocated,
        allocated_low_bytes=allocated,
        reserved_bytes=int(predicted.reserved_bytes.value or 0),
        device_bytes=int(predicted.device_bytes.value or 0),
        overhead_bytes=int(predicted.outside_bytes),
        by_phase={name: int(size) for name, size in predicted.by_phase.items()},
        by_category={name: int(size) for name, size in predicted.breakdown.items()},
        per_rank_bytes=(allocated,),
    )
    # Those of one optimizer step; that differ only in what hides them are one kind here.
    micro, count = settings.micro_batch_size, settings.gradient_accumulation_steps
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for one in profile.collectives(micro, count):
        counts[one.op, one.axis, one.phase] += one.count
        sizes[one.op, one.axis, one.phase] += one.bytes
    return Measurement(
        outcome=Outcome.OK,
        memory=memory,
        collectives=tuple(
            Collective(op=op, axis=axis, phase=phase, count=times, bytes=sizes[op, axis, phase])
            for (op, axis, phase), times in counts.items()
        ),
        tracked_accumulation=count,
        reducing_micro_batches=count if settings.sync_each_batch else 1,
        versions=dict(dry_run.versions),
        wall_s=wall_s,
        dry_run=dry_run.key,
    )


def is_answered(study: Study, limits: Limits, *, here: bool = True) -> bool:
    """Says if a study was answered within these limits: asking again would find nothing new."""
    if study.state is not StudyState.DONE or study.limits != limits:
        return False
    if limits.fidelity is Fidelity.PREDICTED:
        # Where torch was not there, and is now, more can be said.
        return end_of(study, here=here) is not None and planner.is_answered(study)
    return planner.is_answered(study)
