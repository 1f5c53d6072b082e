"""The queue: who may run a probe, for how long, and what becomes of it.

Every function works inside a writing transaction of the caller's. Rows are locked in one order,
attempt, probe, study, so that no two transactions wait for each other; SQLite locks everything.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.measurement import TRIED_AGAIN, Fidelity, Measurement, Outcome
from tuner.store.clock import clock
from tuner.store.engine import one_line
from tuner.store.identity import WorkerIdentity
from tuner.store.records import LEASE_S, AttemptState, Claim, EventKind
from tuner.store.rows import add_event, measurement_row, probe_of
from tuner.store.tables import AttemptRow, ProbeRow, StudyRow
from tuner.study import PROBE_TRANSITIONS, ProbeState, StudyState

MOST_LOSSES = 3
"""A probe whose worker was lost so often is closed: it may be what kills them."""

OPEN = (StudyState.QUEUED, StudyState.RUNNING)
"""States in which a study's probes are entered and run."""


def claim(
    session: Session, study_id: str, worker: WorkerIdentity, fidelity: Fidelity | None = None
) -> Claim | None:
    """Gives the study's oldest queued probe to ``worker``, and puts the study to running."""
    which = [ProbeRow.study_id == study_id, ProbeRow.state == ProbeState.QUEUED]
    which += [ProbeRow.fidelity == fidelity] if fidelity else []
    probe = session.scalar(
        select(ProbeRow)
        .where(*which)
        .order_by(ProbeRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if probe is None:
        return None
    attempt = _new_attempt(session, probe, worker)
    study = locked_study(session, study_id)
    if study.state not in OPEN:
        return None
    now = clock(session)
    attempt.started_at, attempt.lease_until = now, now + timedelta(seconds=LEASE_S)
    if study.state is not StudyState.RUNNING:
        move_study(session, study, StudyState.RUNNING, "", now)
    study.worker, study.worker_seen_at = worker.as_dict(), now
    session.add(attempt)
    _move_probe(session, study, probe, ProbeState.RUNNING, now, {"worker": worker.name}, attempt)
    session.flush()
    return Claim(
        attempt_id=attempt.id, study_id=study_id, probe=probe_of(probe, None), worker=worker
    )


def beat(session: Session, held: Claim) -> bool:
    """Extends the lease of a claim that still holds."""
    attempt = _held(session, held.attempt_id)
    if attempt is None:
        return False
    attempt.lease_until = clock(session) + timedelta(seconds=LEASE_S)
    state = session.scalar(select(StudyRow.state).where(StudyRow.id == held.study_id))
    return state is not StudyState.CANCELLED


def record(session: Session, held: Claim, found: Measurement) -> bool:
    """Ends a claim that still holds with what it found."""
    attempt = _held(session, held.attempt_id)
    if attempt is None:
        return False
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    attempt.state, attempt.outcome = AttemptState.DONE, found.outcome
    attempt.detail, attempt.ended_at = one_line(found.detail), now
    study.revision += 1
    study.worker_seen_at = now
    data = {"outcome": str(found.outcome), "detail": one_line(found.detail)}
    if _ended(session, probe, found.outcome) <= TRIED_AGAIN.get(found.outcome, 0):
        _move_probe(session, study, probe, ProbeState.QUEUED, now, data, attempt)
    else:
        _finish(session, study, probe, attempt, found, now)
        _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)
    return True


def give_back(session: Session, held: Claim, why: str) -> bool:
    """Puts the probe of a claim that still holds back into the queue, as if never tried."""
    attempt = _held(session, held.attempt_id)
    if attempt is None:
        return False
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    attempt.state, attempt.detail = AttemptState.GIVEN_BACK, one_line(why)
    attempt.ended_at = study.worker_seen_at = now
    data = {"detail": one_line(why)}
    _move_probe(session, study, probe, ProbeState.QUEUED, now, data, attempt)
    return True


def suspects(session: Session) -> list[int]:
    """Running attempts whose lease ran out or whose worker is known to be gone. Reads only."""
    now = clock(session)
    running = session.scalars(select(AttemptRow).where(AttemptRow.state == AttemptState.RUNNING))
    return [row.id for row in running if row.lease_until <= now or _gone(row.worker)]


def lose(session: Session, attempt_id: int) -> bool:
    """Takes the probe from a worker that is still suspect, now that its row is locked."""
    attempt = _held(session, attempt_id)
    if attempt is None:
        return False
    gone = _gone(attempt.worker)
    if not gone and attempt.lease_until > clock(session):
        return False
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    why = "its worker is gone" if gone else f"no sign of its worker for {LEASE_S} s"
    attempt.state, attempt.detail, attempt.ended_at = AttemptState.LOST, why, now
    study.revision += 1
    if _losses(session, probe) < MOST_LOSSES:
        _move_probe(session, study, probe, ProbeState.QUEUED, now, {"detail": why}, attempt)
        return True
    why = f"its worker was lost {MOST_LOSSES} times"
    found = Measurement(outcome=Outcome.WORKER_LOST, detail=why)
    _finish(session, study, probe, attempt, found, now)
    data = {"outcome": str(found.outcome), "detail": why}
    _move_probe(session, study, probe, ProbeState.DONE, now, data, attempt)
    return True


def orphans(session: Session) -> list[str]:
    """Running studies that no worker is at. Reads only."""
    now = clock(session)
    running = select(StudyRow).where(StudyRow.state == StudyState.RUNNING)
    return [row.id for row in session.scalars(running) if _orphaned(session, row, now)]


def put_back(session: Session, study_id: str) -> None:
    """Puts a study back to queued, if it is still an orphan now that its row is locked."""
    study = locked_study(session, study_id)
    now = clock(session)
    if study.state is StudyState.RUNNING and _orphaned(session, study, now):
        move_study(session, study, StudyState.QUEUED, "its worker is gone", now)


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
    add_event(session, study, EventKind.STUDY, now, data)


def tell_probe(
    session: Session, study: StudyRow, probe: ProbeRow, now: datetime, data: Mapping[str, Any]
) -> None:
    """Tells where a probe stands now."""
    which = {
        "probe": probe.id,
        "settings": probe.settings,
        "repetition": probe.repetition,
        "state": str(probe.state),
    }
    add_event(session, study, EventKind.PROBE, now, {**which, **data})


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
    tell_probe(session, study, probe, now, {"attempt": attempt.number, **data})


def _finish(
    session: Session,
    study: StudyRow,
    probe: ProbeRow,
    attempt: AttemptRow,
    found: Measurement,
    now: datetime,
) -> None:
    probe.outcome, probe.finished_at = found.outcome, now
    session.add(measurement_row(study, probe, attempt.id, found, now))


def _new_attempt(session: Session, probe: ProbeRow, worker: WorkerIdentity) -> AttemptRow:
    tried = session.scalar(select(func.count()).where(AttemptRow.probe_id == probe.id)) or 0
    return AttemptRow(
        probe_id=probe.id,
        number=tried + 1,
        state=AttemptState.RUNNING,
        detail="",
        worker=worker.as_dict(),
    )


def _held(session: Session, attempt_id: int) -> AttemptRow | None:
    """The fence: the attempt, locked, if it is still its worker's."""
    attempt = session.get(AttemptRow, attempt_id, with_for_update=True)
    return attempt if attempt and attempt.state is AttemptState.RUNNING else None


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


def _orphaned(session: Session, study: StudyRow, now: datetime) -> bool:
    """Whether no worker is at a running study: none holds a probe, and the one that was at it
    last is known to be gone or, where that cannot be told, gave no sign for a lease's time."""
    attempts = select(func.count()).join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
    held = (ProbeRow.study_id == study.id, AttemptRow.state == AttemptState.RUNNING)
    if session.scalar(attempts.select_from(AttemptRow).where(*held)):
        return False
    alive = WorkerIdentity.from_dict(study.worker).is_alive() if study.worker else None
    if alive is not None:
        return not alive
    seen = study.worker_seen_at
    return seen is None or seen + timedelta(seconds=LEASE_S) <= now
