"""From rows to the domain's objects, and back."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import StoreError, UsageError
from tuner.measurement import Measurement, Outcome
from tuner.settings import parse_settings
from tuner.store.attempts import fruitless_s
from tuner.store.calibrations import read_calibration
from tuner.store.clock import clock, iso
from tuner.store.records import Event, EventKind, StudySummary
from tuner.store.tables import (
    DryRunRow,
    EventRow,
    MeasurementRow,
    ProbeRow,
    StudyRow,
)
from tuner.store.verdicts import guards_of
from tuner.study import Probe, ProbeRequest, Question, Study, Terms

if TYPE_CHECKING:
    from tuner.dryrun import DryRun


def read_study(session: Session, row: StudyRow) -> Study:
    """The whole study, in four queries more, and another one for dry runs that it names.

    The row is read first: should a probe change between the two, the revision is the older one,
    and a plan made from it is not entered.

    Raises:
        StoreError: it was written by a version whose questions this one cannot read.
    """
    found = session.execute(
        select(ProbeRow, MeasurementRow.measurement)
        .outerjoin(MeasurementRow, MeasurementRow.probe_id == ProbeRow.id)
        .where(ProbeRow.study_id == row.id)
        .order_by(ProbeRow.id)
    ).all()
    try:
        probes = tuple(probe_of(probe, measurement) for probe, measurement in found)
        named = {p.measurement.dry_run for p in probes if p.measurement} - {""}
        study = study_of(row, probes, read_dry_runs(session, named))
        question = study.question
        return replace(
            study,
            fruitless_s=fruitless_s(session, row),
            guards=guards_of(session, question),
            calibration=read_calibration(session, question.cluster, question.framework.versions),
        )
    except (UsageError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise StoreError(f"study {row.id} cannot be read by this version: {reason}") from error


def read_dry_runs(session: Session, keys: Collection[str]) -> "dict[str, DryRun]":
    """The dry runs of these keys that are kept, by key; none for one of another format."""
    if not keys:
        return {}
    from tuner.dryrun import DryRun

    rows = session.scalars(select(DryRunRow).where(DryRunRow.key.in_(sorted(keys))))
    found = {}
    for row in rows:
        with suppress(ValueError, KeyError, TypeError):  # another version's: it is made anew
            found[row.key] = DryRun.from_dict(row.record)
    return found


def keep_dry_run(session: Session, dry_run: "DryRun") -> None:
    """Keep a dry run. The first of a key stays, unless it had failed or cannot be read."""
    row = session.get(DryRunRow, dry_run.key, with_for_update=True)
    if row is None:
        row = DryRunRow(key=dry_run.key, record=dry_run.as_dict(), created_at=clock(session))
        with suppress(IntegrityError), session.begin_nested():  # another was quicker
            session.add(row)
    elif row.key not in read_dry_runs(session, [row.key]) or row.record.get("error"):
        row.record, row.created_at = dry_run.as_dict(), clock(session)


def study_of(row: StudyRow, probes: tuple[Probe, ...], dry_runs: "dict[str, DryRun]") -> Study:
    """A study with these probes and dry runs."""
    return Study(
        id=row.id,
        question=Question.from_dict(row.question),
        terms=Terms.from_dict(row.terms),
        state=row.state,
        reason=row.reason,
        revision=row.revision,
        seed=row.seed,
        probes_before=row.probes_before,
        probes=probes,
        dry_runs=dry_runs,
        created_at=iso(row.created_at) or "",
        asked_at=iso(row.asked_at) or "",
    )


def probe_of(row: ProbeRow, measurement: Mapping[str, Any] | None) -> Probe:
    """A probe with what it found."""
    return Probe(
        id=row.id,
        request=ProbeRequest(
            settings=parse_settings(row.settings),
            fidelity=row.fidelity,
            repetition=row.repetition,
            accumulation_counts=tuple(row.accumulation_counts),
        ),
        state=row.state,
        memory_limit_bytes=row.memory_limit_bytes,
        measurement=Measurement.from_dict(measurement) if measurement else None,
        finished_at=iso(row.finished_at),
    )


def measurement_row(
    study: StudyRow, probe: ProbeRow, attempt_id: int | None, found: Measurement, now: datetime
) -> MeasurementRow:
    """The row of a measurement."""
    memory = found.memory
    count = max(found.step_times_s, default=0)
    times = found.step_times_s.get(count, ())
    step_time_s = statistics.median(times) if times else None
    return MeasurementRow(
        probe_id=probe.id,
        attempt_id=attempt_id,
        outcome=found.outcome,
        allocated_bytes=memory and memory.allocated_bytes,
        reserved_bytes=memory and memory.reserved_bytes,
        device_bytes=memory and memory.device_bytes,
        step_time_s=step_time_s,
        tokens_per_s=_tokens(study, probe, count) / step_time_s if step_time_s else None,
        wall_s=found.wall_s,
        device_s=found.device_s,
        measurement=found.as_dict(),
        recorded_at=now,
    )


def _tokens(study: StudyRow, probe: ProbeRow, count: int) -> float:
    """Tokens of a step of ``count`` micro-batches: that share of a whole optimizer step's."""
    workload = study.question["workload"]
    whole = workload["sequence_length"] * workload["global_batch_size"]
    return float(whole * count / parse_settings(probe.settings).gradient_accumulation_steps)


def read_summaries(session: Session, limit: int) -> list[StudySummary]:
    """The studies asked last, newest first, in two queries."""
    newest = select(StudyRow).order_by(StudyRow.asked_at.desc(), StudyRow.id).limit(limit)
    rows = session.scalars(newest).all()
    counts = _outcomes(session, [row.id for row in rows])
    return [
        StudySummary(
            id=row.id,
            model_name=row.model_name,
            cluster_name=row.cluster_name,
            state=row.state,
            reason=row.reason,
            probes=counts.get(row.id, {}),
            created_at=iso(row.created_at) or "",
            asked_at=iso(row.asked_at) or "",
        )
        for row in rows
    ]


def _outcomes(session: Session, study_ids: Sequence[str]) -> dict[str, dict[Outcome, int]]:
    counted = session.execute(
        select(ProbeRow.study_id, ProbeRow.outcome, func.count())
        .where(ProbeRow.study_id.in_(study_ids), ProbeRow.outcome.is_not(None))
        .group_by(ProbeRow.study_id, ProbeRow.outcome)
        .order_by(ProbeRow.outcome)
    )
    counts: dict[str, dict[Outcome, int]] = {}
    for study_id, outcome, count in counted:
        assert outcome is not None
        counts.setdefault(study_id, {})[outcome] = count
    return counts


def event_of(row: EventRow) -> Event:
    """An event."""
    at = iso(row.at) or ""
    return Event(id=row.id, study_id=row.study_id, kind=row.kind, at=at, data=row.data)


def add_event(
    session: Session, study: StudyRow, kind: EventKind, now: datetime, data: Mapping[str, Any]
) -> None:
    """Tells what happened. The caller holds the study's row lock, or events of one study could be
    committed in another order than that of their ids, and a reader would miss some."""
    session.add(EventRow(study_id=study.id, kind=kind, at=now, data=dict(data)))
