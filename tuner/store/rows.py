"""Studies as they are read: their rows, those of their probes, their events, and earlier studies
beside them.
"""

import json
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from math import fsum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, Text, insert, select, type_coerce
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner.core import lease
from tuner.core.configuration import parse_settings
from tuner.core.measurement import PROBED, Measurement, Outcome, believable
from tuner.core.study import OPEN, Limits, Probe, ProbeRequest, ProbeState, Question, Study
from tuner.errors import UnknownNameError, UnreadableStudyError, UsageError
from tuner.store.caches import read_calibration, read_checks_for, read_dry_runs
from tuner.store.tables import (
    AttemptRow,
    AttemptState,
    Base,
    EventKind,
    EventRow,
    MeasurementRow,
    ProbeRow,
    StudyRow,
    UtcNow,
    from_row,
    iso,
)
from tuner.store.workers import Silence, read_silent, silence_of, state_of

if TYPE_CHECKING:
    from tuner.dryrun import DryRun


# The columns that :func:`probe_of` reads; rows of them are read faster than whole objects.
PROBE_COLUMNS: tuple[InstrumentedAttribute[Any], ...] = (
    ProbeRow.id,
    ProbeRow.number,
    ProbeRow.settings,
    ProbeRow.fidelity,
    ProbeRow.repetition,
    ProbeRow.accumulation_counts,
    ProbeRow.state,
    ProbeRow.memory_limit_bytes,
    ProbeRow.finished_at,
)

# Earlier studies that a study is read with.
MOST_SIMILAR = 20
# Studies that are named, the newest ones, where all begin as was written.
MOST_NAMED = 5
# Likeness of two ids of 12 characters that differ in one or two.
LIKE_AN_ID = 0.8
# Probes that they have together, the newest ones; a search looks at no more.
MOST_PROBES = 300

# As text: to read the JSON of all columns with each row would be slower.
_FOUND = type_coerce(MeasurementRow.measurement, Text).label("found")


def locked_study(session: Session, study_id: str) -> StudyRow:
    """The study's row, locked until the transaction ends; UsageError if there is none."""
    row = session.get(StudyRow, study_id, with_for_update=True)
    if row is None:
        raise unknown_study(session, study_id)
    return row


def unknown_study(session: Session, given: str) -> UsageError:
    newest = select(StudyRow.id).order_by(StudyRow.asked_at.desc()).limit(1000)
    ids = session.scalars(newest).all()
    if not ids:
        return UsageError("study", given, "no such study; there are none in this database yet")
    if given and ids[1:] and ids[0].startswith(given):  # no more than what all ids begin with
        named = ", ".join([*ids[:MOST_NAMED], *["..."] * (len(ids) > MOST_NAMED)])
        return UsageError("study", given, f"several begin so: {named}")
    # Ids are made of chance: only one with a letter or two wrong is like the one that was meant.
    if get_close_matches(given, ids, n=1, cutoff=LIKE_AN_ID):
        return UnknownNameError("study", given, ids)
    return UsageError("study", given, "no such study; tuner studies list has those that are there")


def read_study(session: Session, row: StudyRow) -> Study:
    """The whole study, with earlier ones that may teach something of it; what a worker holds whose
    lease is over waits for another. Raises UnreadableStudyError: it was written by a version whose
    questions this one cannot read."""
    # The row was read first: should a probe change between the two, the revision is the older one,
    # and a plan made from it is not entered.
    found = session.execute(
        select(*PROBE_COLUMNS, _FOUND)
        .outerjoin(MeasurementRow, MeasurementRow.probe_id == ProbeRow.id)
        .where(ProbeRow.study_id == row.id)
        .order_by(ProbeRow.id)
    ).all()
    lost: set[int] = set()
    if row.state in OPEN and any(one.state is ProbeState.RUNNING for one in found):
        ours = AttemptRow.probe_id.in_([p.id for p in found if p.state is ProbeState.RUNNING])
        overdue = (AttemptRow.state == AttemptState.RUNNING, AttemptRow.lease_until <= UtcNow())
        lost = set(session.scalars(select(AttemptRow.probe_id).where(ours, *overdue)))
    try:
        probes = tuple(probe_of(one, _measurement(one.found)) for one in found)
        if lost:
            waits = ProbeState.QUEUED
            probes = tuple(replace(p, state=waits) if p.row_id in lost else p for p in probes)
        dry_runs = {p.measurement.dry_run for p in probes if p.measurement} - {""}
        study = _study_of(row, probes, read_dry_runs(session, dry_runs))
        question = study.question
        wasted_s, wasted_before_s = _wasted_s(session, row)
        study = replace(
            study,
            wasted_s=wasted_s,
            wasted_before_s=wasted_before_s,
            **state_of(row, read_silent(session, [row])),
            guards=read_checks_for(session, question),
            calibration=read_calibration(session, question.cluster, question.framework.versions),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        text = f"study {row.id} cannot be read by this version: {reason}"
        raise UnreadableStudyError(text) from error
    return replace(study, past=similar_studies(session, question))


def _study_of(row: StudyRow, probes: tuple[Probe, ...], dry_runs: "dict[str, DryRun]") -> Study:
    return Study(
        id=row.id,
        question=Question.from_dict(row.question),
        limits=Limits.from_dict(row.limits),
        state=row.state,
        reason=row.reason,
        revision=row.revision,
        labels=row.labels,
        seed=row.seed,
        probes_before=row.probes_before,
        guard_s=row.guard_s,
        guard_before_s=row.guard_before_s,
        probes=probes,
        dry_runs=dry_runs,
        created_at=iso(row.created_at),
        asked_at=iso(row.asked_at),
    )


def probe_of(row: ProbeRow | Row[*tuple[Any, ...]], measurement: Measurement | None) -> Probe:
    """A probe with its measurement, from its row or from :data:`PROBE_COLUMNS`."""
    return Probe(
        id=row.number,
        row_id=row.id,
        request=ProbeRequest(
            settings=parse_settings(row.settings),
            fidelity=row.fidelity,
            repetition=row.repetition,
            accumulation_counts=tuple(row.accumulation_counts),
        ),
        state=row.state,
        memory_limit_bytes=row.memory_limit_bytes,
        measurement=measurement,
        finished_at=iso(row.finished_at) if row.finished_at else None,
    )


# A study is read again after every probe, and what was measured before stays as it is.
@lru_cache(maxsize=1024)
def _measurement(text: str | None) -> Measurement | None:
    return believable(Measurement.from_dict(json.loads(text))) if text is not None else None


def measurement_row(
    study: StudyRow, probe: ProbeRow, attempt_id: int | None, found: Measurement, now: datetime
) -> MeasurementRow:
    memory = found.memory
    count = max(found.step_times_s, default=0)
    times = found.step_times_s.get(count, ())
    step_time_s = statistics.median(times) if times else None
    # A step of ``count`` micro-batches has that share of a whole optimizer step's tokens.
    workload = study.question["workload"]
    tokens = workload["sequence_length"] * workload["global_batch_size"] * count
    tokens /= parse_settings(probe.settings).gradient_accumulation_steps
    return MeasurementRow(
        probe_id=probe.id,
        attempt_id=attempt_id,
        outcome=found.outcome,
        allocated_bytes=memory and memory.allocated_bytes,
        reserved_bytes=memory and memory.reserved_bytes,
        device_bytes=memory and memory.device_bytes,
        step_time_s=step_time_s,
        tokens_per_s=tokens / step_time_s if step_time_s else None,
        wall_s=found.wall_s,
        device_s=found.device_s,
        measurement=found.as_dict(),
        recorded_at=now,
    )


# An attempt that ended without a measurement. What closes a probe that lost all its workers names
# the last of them.
_IS_WASTED = MeasurementRow.attempt_id.is_(None) | (AttemptRow.state == AttemptState.LOST)


def _wasted_s(session: Session, study: StudyRow) -> tuple[float, float]:
    """Seconds of attempts without a measurement: since the study was last asked, and before.

    They were given back, lost, or ended in an accident after which the probe was tried again; at
    the fidelity that is asked for. A lost one counts until the last sign of its worker.
    """
    rows = session.scalars(
        select(AttemptRow)
        .join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .where(
            ProbeRow.study_id == study.id,
            ProbeRow.fidelity == Limits.from_dict(study.limits).fidelity,
            AttemptRow.state != AttemptState.RUNNING,
            _IS_WASTED,
        )
    )
    now: list[float] = []
    before: list[float] = []
    for row in rows:
        assert row.ended_at is not None, row.id
        end = row.ended_at
        if row.state is AttemptState.LOST:
            end = min(end, row.lease_until - timedelta(seconds=lease.LEASE_S))
        seconds = max(0.0, (end - row.started_at).total_seconds())
        (now if row.started_at >= study.asked_at else before).append(seconds)
    return fsum(now), fsum(before)


def similar_studies(
    session: Session, question: Question, limit: int = MOST_SIMILAR
) -> tuple[Study, ...]:
    """Studies of other questions about the same stack and kind of cluster, those asked last first.

    They have their finished probes that ran steps, and nothing else. None is of another framework,
    other versions, another GPU, node or link, or another number format; the number of nodes, the
    workload and the knobs may differ. A study that this version cannot read is left out.
    """
    ran = (ProbeRow.state == ProbeState.DONE, ProbeRow.fidelity.in_(PROBED))
    any_ran = select(ProbeRow.id).where(ProbeRow.study_id == StudyRow.id, *ran).exists()
    rows = session.scalars(
        select(StudyRow)
        .where(StudyRow.kind == question.kind, StudyRow.identity != question.identity, any_ran)
        .order_by(StudyRow.asked_at.desc(), StudyRow.id)
        .limit(limit)
    ).all()
    if not rows:
        return ()
    newest = session.execute(
        select(*PROBE_COLUMNS, ProbeRow.study_id, _FOUND)
        .join(MeasurementRow, MeasurementRow.probe_id == ProbeRow.id)
        .where(ProbeRow.study_id.in_([row.id for row in rows]), *ran)
        .order_by(ProbeRow.id.desc())
        .limit(MOST_PROBES)
    ).all()
    probes: dict[str, list[Probe]] = {}
    for one in reversed(newest):
        with suppress(KeyError, TypeError, ValueError):  # another version's
            probe = probe_of(one, _measurement(one.found))
            # A stand-in's times are of another kind of device.
            emulation = probe.measurement and probe.measurement.emulation
            if not (emulation and emulation.stands_in):
                probes.setdefault(one.study_id, []).append(probe)
    studies = []
    for row in rows:
        if own := probes.get(row.id):
            with suppress(KeyError, TypeError, ValueError):  # another version's
                studies.append(_study_of(row, tuple(own), {}))
    return tuple(studies)


# Of the table instead of the class, and inline: other inserts read each new id back.
_NEW_EVENT = insert(Base.metadata.tables[EventRow.__tablename__]).inline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a study. Ids grow in the order of commits of one study."""

    id: int  # its row, and the cursor to read on from
    study_id: str
    kind: EventKind
    at: str
    data: Mapping[str, Any]  # plain JSON values; see :class:`EventKind`


def add_event(
    session: Session | Connection,
    study_id: str,
    kind: EventKind,
    now: datetime,
    data: Mapping[str, Any],
) -> None:
    """Adds an event of a study whose row the caller has locked."""
    # Without the lock events of one study could be committed in another order than that of their
    # ids, and a reader would miss some.
    row = {"study_id": study_id, "kind": kind, "at": now, "data": dict(data)}
    connection = session.connection() if isinstance(session, Session) else session
    connection.execute(_NEW_EVENT, row)


def read_events(
    session: Session, study_id: str, after: int = 0, limit: int | None = None
) -> list[Event]:
    """The first events of a study since the event ``after``, oldest first."""
    columns = (EventRow.id, EventRow.kind, EventRow.at, EventRow.data)
    newer = select(*columns).where(EventRow.study_id == study_id, EventRow.id > after)
    return [
        Event(id=row.id, study_id=study_id, kind=row.kind, at=iso(row.at), data=row.data)
        for row in session.execute(newer.order_by(EventRow.id).limit(limit))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When a study ended, or what runs of it began, UTC in ISO 8601."""

    ended: str = ""
    """Empty while it is open, and where no event tells."""
    began: Mapping[int, str] = field(default_factory=dict)
    """Of the running probes of one that is open, by their numbers."""
    silent: Mapping[int, Silence] = field(default_factory=dict)
    """Of those of them whose workers have not been heard of."""


def read_moments(session: Session, study: Study) -> Moments:
    if study.state not in OPEN:
        moved = select(EventRow.at).where(
            EventRow.study_id == study.id, EventRow.kind == EventKind.STUDY
        )
        at = session.scalar(moved.order_by(EventRow.id.desc()).limit(1))
        return Moments(ended=iso(at) if at else "")
    running = (
        select(ProbeRow.number, AttemptRow.started_at, AttemptRow.lease_until, UtcNow())
        .join(AttemptRow, AttemptRow.probe_id == ProbeRow.id)
        .where(ProbeRow.study_id == study.id, AttemptRow.state == AttemptState.RUNNING)
    )
    began, silent = {}, {}
    for number, since, until, now in session.execute(running):
        began[number] = iso(since)
        if found := silence_of(until, now):
            silent[number] = found
    return Moments(began=began, silent=silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt of a probe of which nothing came."""

    number: int  # 1 for the probe's first attempt
    state: AttemptState
    outcome: Outcome | None  # of an accident, after which the probe was tried again
    detail: str
    worker: str  # name of the worker that had it
    started_at: str
    ended_at: str


def read_wasted(session: Session, study_id: str) -> dict[int, tuple[Attempt, ...]]:
    """The attempts of a study's probes that were lost, given back or tried again, by the probes'
    numbers, oldest first."""
    wasted = (
        select(ProbeRow.number.label("probe"), AttemptRow)
        .join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .where(ProbeRow.study_id == study_id, AttemptRow.state != AttemptState.RUNNING, _IS_WASTED)
        .order_by(AttemptRow.id)
    )
    found: dict[int, tuple[Attempt, ...]] = {}
    for number, row in session.execute(wasted):
        one = from_row(Attempt, row, worker=row.worker.get("name", ""))
        found[number] = (*found.get(number, ()), one)
    return found
