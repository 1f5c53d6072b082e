"""The queue: who may keep a probe, for how long, and what becomes of it.

Every function works inside a writing transaction of the caller's. Rows are locked in one order,
attempt, probe, study, so that no two transactions wait for each other; SQLite locks everything. A
claim locks its study first, then a probe that is queued, which nobody locks without the study's
lock, and then writes its devices' rows. These are deleted by their attempt's end, when it has all
its locks: nobody can wait for one that is deleted but to write it.

A commit whose answer is lost, because the server or the network fails at that moment, may have
been made. So what a worker sends twice finds that it was done, by the attempt that is its own.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from tuner.measurement import TRAINS_WRONGLY, TRIED_AGAIN, Measurement, Outcome, believable
from tuner.settings import parse_settings
from tuner.store.clock import clock
from tuner.store.devices import free
from tuner.store.engine import one_line
from tuner.store.events import add_event
from tuner.store.identity import WorkerIdentity
from tuner.store.records import LEASE_S, AttemptState, Claim, EventKind
from tuner.store.rows import measurement_row
from tuner.store.tables import AttemptRow, MeasurementRow, ProbeRow, StudyRow
from tuner.store.verdicts import keep_failure
from tuner.study import OPEN, PROBE_TRANSITIONS, ProbeState, Question, StudyState

MOST_LOSSES = 3
"""A probe whose worker was lost so often is closed: it may be what kills them."""


def beat(session: Session, held: Claim, lease_s: float = LEASE_S) -> bool:
    """Extends the lease of a claim that still holds."""
    attempt = _held(session, held.attempt_id)
    if attempt is None:
        return False
    attempt.lease_until = clock(session) + timedelta(seconds=lease_s)
    state = session.scalar(select(StudyRow.state).where(StudyRow.id == held.study_id))
    return state is not StudyState.CANCELLED


def record(session: Session, held: Claim, found: Measurement) -> bool:
    """Ends a claim that still holds with what it found, if that can be."""
    attempt, found = _locked(session, held.attempt_id), believable(found)
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return attempt is not None and _was_recorded(session, attempt, found)
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    attempt.outcome = found.outcome
    if lost := set(found.lost_devices) & set(attempt.devices):
        attempt.devices = sorted(lost)  # the others may be had again
    _end(session, attempt, AttemptState.DONE, found.detail, now)
    study.revision += 1
    study.worker_seen_at = now
    data = {"outcome": str(found.outcome), "detail": one_line(found.detail)}
    again = _ended(session, probe, found.outcome) <= TRIED_AGAIN.get(found.outcome, 0)
    if again and study.state in OPEN:
        _move_probe(session, study, probe, ProbeState.QUEUED, now, data, attempt)
    else:
        _finish(session, study, probe, attempt.id, found, now)
        _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)
        if found.outcome in TRAINS_WRONGLY:
            question, tried = Question.from_dict(study.question), parse_settings(probe.settings)
            keep_failure(session, study.id, question, tried, found)
    return True


def give_back(session: Session, held: Claim, why: str) -> bool:
    """Puts the probe of a claim that still holds back into the queue, as if never tried."""
    attempt = _locked(session, held.attempt_id)
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return attempt is not None and attempt.state is AttemptState.GIVEN_BACK
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    _end(session, attempt, AttemptState.GIVEN_BACK, why, now)
    study.worker_seen_at = now
    _put_back(session, study, probe, attempt, why, now)
    return True


def suspects(session: Session) -> list[int]:
    """Running attempts whose lease ran out or whose worker is known to be gone. Reads only."""
    now = clock(session)
    running = session.scalars(select(AttemptRow).where(AttemptRow.state == AttemptState.RUNNING))
    return [row.id for row in running if row.lease_until <= now or _gone(row.worker)]


def lose(session: Session, attempt_id: int, lease_s: float = LEASE_S) -> bool:
    """Takes the probe from a worker that is still suspect, now that its row is locked."""
    attempt = _held(session, attempt_id)
    if attempt is None:
        return False
    gone = _gone(attempt.worker)
    if not gone and attempt.lease_until > clock(session):
        return False
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    why = "its worker is gone" if gone else f"no sign of its worker for {lease_s:g} s"
    _end(session, attempt, AttemptState.LOST, why, now)
    study.revision += 1
    if _losses(session, probe) < MOST_LOSSES:
        _put_back(session, study, probe, attempt, why, now)
        return True
    why = f"its worker was lost {MOST_LOSSES} times"
    found = Measurement(outcome=Outcome.WORKER_LOST, detail=why)
    _finish(session, study, probe, attempt.id, found, now)
    data = {"outcome": str(found.outcome), "detail": why}
    _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)
    return True


def orphans(session: Session, lease_s: float = LEASE_S) -> list[str]:
    """Running studies that no worker is at. Reads only."""
    now = clock(session)
    running = select(StudyRow).where(StudyRow.state == StudyState.RUNNING)
    return [row.id for row in session.scalars(running) if _orphaned(session, row, now, lease_s)]


def put_back(session: Session, study_id: str, lease_s: float = LEASE_S) -> None:
    """Puts a study back to queued, if it is still an orphan now that its row is locked."""
    study = locked_study(session, study_id)
    now = clock(session)
    if study.state is StudyState.RUNNING and _orphaned(session, study, now, lease_s):
        move_study(session, study, StudyState.QUEUED, "its worker is gone", now)


def close_unwanted(session: Session, attempt_id: int) -> None:
    """Ends a queued probe, whose attempt lost a device, as nobody with others has taken it.

    Its result names no attempt, as in :func:`withdraw`.
    """
    attempt = session.get_one(AttemptRow, attempt_id)
    probe, study = _probe_and_study(session, attempt)
    now, found = clock(session), Measurement(outcome=Outcome.DEVICE_LOST, detail=attempt.detail)
    study.revision += 1
    _finish(session, study, probe, None, found, now)
    data = {"outcome": str(found.outcome), "detail": attempt.detail}
    _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)


def withdraw(session: Session, study: StudyRow, why: str, now: datetime) -> None:
    """Takes the probes of a study, whose row is locked, off the queue."""
    queued = (ProbeRow.study_id == study.id, ProbeRow.state == ProbeState.QUEUED)
    for probe in session.scalars(select(ProbeRow).where(*queued).with_for_update()).all():
        _withdraw(session, study, probe, why, now)


def _withdraw(session: Session, study: StudyRow, probe: ProbeRow, why: str, now: datetime) -> None:
    """Takes a probe off the queue; both rows are locked.

    One that was tried is kept as cancelled, so that what its attempts have cost stays known. Its
    result names none of them: that would lock an attempt after its study.
    """
    mine = select(AttemptRow.id).where(AttemptRow.probe_id == probe.id).limit(1)
    if session.scalar(mine) is None:
        tell_probe(session, study.id, probe, now, {"state": "withdrawn"})
        session.delete(probe)
        return
    found = Measurement(outcome=Outcome.CANCELLED, detail=one_line(why))
    _finish(session, study, probe, None, found, now)
    probe.state = ProbeState.DONE
    data = {"outcome": str(found.outcome), "detail": found.detail}
    tell_probe(session, study.id, probe, now, data)


def locked_study(session: Session, study_id: str) -> StudyRow:
    """The study's row, locked until the transaction ends."""
    row = session.get(StudyRow, study_id, with_for_update=True)
    assert row is not None, study_id
    return row


def move_study(
    session: Session, study: StudyRow, to: StudyState, reason: str, now: datetime
) -> None:
    """Changes the state of a study whose row is locked, and tells it."""
    data = {"before": str(study.state), "state": str(to), "reason": one_line(reason)}
    study.state, study.reason = to, one_line(reason)
    if to is not StudyState.RUNNING:
        study.worker = study.worker_seen_at = None
    add_event(session, study.id, EventKind.STUDY, now, data)


def tell_probe(
    session: Session,
    study_id: str,
    probe: ProbeRow | Row[Any],
    now: datetime,
    data: Mapping[str, Any],
) -> None:
    """Tells where a probe stands now; the study's row is locked."""
    which = {
        "probe": probe.id,
        "settings": probe.settings,
        "repetition": probe.repetition,
        "state": str(probe.state),
    }
    add_event(session, study_id, EventKind.PROBE, now, {**which, **data})


def _move_probe(
    session: Session,
    study: StudyRow,
    probe: ProbeRow,
    to: ProbeState,
    now: datetime,
    data: Mapping[str, Any],
    attempt: AttemptRow,
) -> None:
    assert to in PROBE_TRANSITIONS[probe.state], (probe.state, to)
    probe.state = to
    tell_probe(session, study.id, probe, now, {"attempt": attempt.number, **data})


def _put_back(
    session: Session,
    study: StudyRow,
    probe: ProbeRow,
    attempt: AttemptRow,
    why: str,
    now: datetime,
) -> None:
    """Queues a probe again, unless its study has ended: then nobody would run it."""
    data = {"detail": one_line(why)}
    if study.state in OPEN:
        _move_probe(session, study, probe, ProbeState.QUEUED, now, data, attempt)
        return
    found = Measurement(outcome=Outcome.CANCELLED, detail=one_line(why))
    _finish(session, study, probe, None, found, now)  # what the attempt cost came to nothing
    data = {"outcome": str(found.outcome), **data}
    _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)


def _finish(
    session: Session,
    study: StudyRow,
    probe: ProbeRow,
    attempt_id: int | None,
    found: Measurement,
    now: datetime,
) -> None:
    probe.outcome, probe.finished_at = found.outcome, now
    session.add(measurement_row(study, probe, attempt_id, found, now))


def _end(session: Session, attempt: AttemptRow, how: AttemptState, why: str, now: datetime) -> None:
    """Ends an attempt that holds, and lets others have its devices."""
    attempt.state, attempt.detail, attempt.ended_at = how, one_line(why), now
    free(session, attempt)


def _held(session: Session, attempt_id: int) -> AttemptRow | None:
    """The fence: the attempt, locked, if it is still its worker's."""
    attempt = _locked(session, attempt_id)
    return attempt if attempt and attempt.state is AttemptState.RUNNING else None


def _locked(session: Session, attempt_id: int) -> AttemptRow | None:
    return session.get(AttemptRow, attempt_id, with_for_update=True)


def _was_recorded(session: Session, attempt: AttemptRow, found: Measurement) -> bool:
    """Whether this is what the attempt ended with: its worker did not hear that it was recorded.

    An accident after which the probe is tried again leaves no more than its outcome.
    """
    kept = session.scalar(
        select(MeasurementRow.measurement).where(MeasurementRow.attempt_id == attempt.id)
    )
    if kept is not None and json.dumps(kept) != json.dumps(found.as_dict()):  # NaN is NaN
        return False
    return (attempt.outcome, attempt.detail) == (found.outcome, one_line(found.detail))


def _probe_and_study(session: Session, attempt: AttemptRow) -> tuple[ProbeRow, StudyRow]:
    probe = session.get(ProbeRow, attempt.probe_id, with_for_update=True)
    assert probe is not None, attempt.probe_id
    return probe, locked_study(session, probe.study_id)


def _ended(session: Session, probe: ProbeRow, outcome: Outcome) -> int:
    """Attempts of the probe that ended so, the one at hand included."""
    same = (AttemptRow.probe_id == probe.id, AttemptRow.outcome == outcome)
    return session.scalar(select(func.count()).where(*same)) or 0


def _losses(session: Session, probe: ProbeRow) -> int:
    lost = (AttemptRow.probe_id == probe.id, AttemptRow.state == AttemptState.LOST)
    return session.scalar(select(func.count()).where(*lost)) or 0


def _gone(worker: Mapping[str, Any]) -> bool:
    return WorkerIdentity.from_dict(worker).is_alive() is False


def _orphaned(session: Session, study: StudyRow, now: datetime, lease_s: float) -> bool:
    """Whether no worker is at a running study: none holds a probe, and the one that was at it
    last is known to be gone or, where that cannot be told, gave no sign for a lease's time."""
    held = (ProbeRow.state == ProbeState.RUNNING, ProbeRow.study_id == study.id)
    if session.scalar(select(ProbeRow.id).where(*held).limit(1)):
        return False
    alive = WorkerIdentity.from_dict(study.worker).is_alive() if study.worker else None
    if alive is not None:
        return not alive
    seen = study.worker_seen_at
    return seen is None or seen + timedelta(seconds=lease_s) <= now
