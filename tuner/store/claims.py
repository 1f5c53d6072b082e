"""Claims: a queued probe, and the devices to run it on, given to one worker.

All workers come through here one after another, while the database's lock or the study's is held:
statements are few, and made once, and as few as can be follow the study's lock. Rows are locked in
the order probe, device, study; see :mod:`tuner.store.queue`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Row,
    Select,
    Update,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from tuner.measurement import Fidelity, Outcome
from tuner.store import devices as holding
from tuner.store import queue
from tuner.store.identity import WorkerIdentity
from tuner.store.records import LEASE_S, AttemptState, Claim
from tuner.store.rows import probe_of
from tuner.store.tables import Base, UtcNow
from tuner.study import OPEN, ProbeState, StudyState

ATTEMPTS = Base.metadata.tables["attempts"]
PROBES = Base.metadata.tables["probes"]
STUDIES = Base.metadata.tables["studies"]


class Unclaimed(Exception):  # noqa: N818 - it is no error, but ends the transaction as one does
    """Nothing can be claimed, and what the transaction has written meanwhile is to be undone."""


def claim(
    session: Session,
    study_id: str,
    worker: WorkerIdentity,
    fidelity: Fidelity | None = None,
    devices: Collection[str] = (),
    lease_s: float = LEASE_S,
) -> Claim | None:
    """Gives the study's oldest queued probe to ``worker``, and puts the study to running.

    With it goes the right to ``devices``; nothing is given when another attempt has one of them.
    It works inside a writing transaction of its own.

    Raises:
        Unclaimed: another was quicker, or the study is at its end; the transaction must not be
            committed.
    """
    connection = session.connection()
    if holding.is_any_held(connection, devices):
        return None
    wanted = {"study_id": study_id, "fidelity": fidelity}
    probe = connection.execute(_untroubled(any_fidelity=fidelity is None), wanted).first()
    probe = probe or _after_a_loss(session, wanted, devices, lease_s)
    if probe is None:
        return None
    number = _next_number(connection, probe, devices)
    attempt_id = _new_attempt(connection, probe, number, worker, devices, lease_s)
    now = _at_study(session, study_id, worker)
    data = {"state": str(ProbeState.RUNNING), "attempt": number, "worker": worker.name}
    queue.tell_probe(session, study_id, probe, now, data)
    running = replace(probe_of(probe, None), state=ProbeState.RUNNING)
    return Claim(attempt_id=attempt_id, study_id=study_id, probe=running, worker=worker)


def _after_a_loss(
    session: Session, wanted: Mapping[str, Any], devices: Collection[str], lease_s: float
) -> Row[Any] | None:
    """The oldest queued probe that lost a device, and none of ``devices``.

    If there are only such as lost one of them, the oldest is ended, unless workers with other
    devices still have time to take it: a device that disappeared would end it in the same way.
    """
    with_losses = _with_losses(any_fidelity=wanted["fidelity"] is None)
    rows = session.connection().execute(with_losses, wanted).all()
    barred = _barred(rows, devices)
    for row in rows:
        if row.probe_id not in barred:
            return row
    over = [row for row in rows if row.ended_at + timedelta(seconds=lease_s) <= row.now]
    if over:
        queue.close_unwanted(session, over[0].attempt_id)
    return None


def _barred(lost: Iterable[Row[Any]], devices: Collection[str]) -> set[int]:
    """The probes of those attempts in which one of ``devices`` disappeared."""
    return {attempt.probe_id for attempt in lost if set(attempt.devices) & set(devices)}


def _next_number(connection: Connection, probe: Row[Any], devices: Collection[str]) -> int:
    """The number of a probe's next attempt, by what is known now that its row is locked: others
    may have tried it since it was looked for."""
    tried = connection.execute(_attempts_of(), {"probe": probe.id}).all()
    if _barred((one for one in tried if one.outcome is Outcome.DEVICE_LOST), devices):
        raise Unclaimed
    return len(tried) + 1


def _new_attempt(
    connection: Connection,
    probe: Row[Any],
    number: int,
    worker: WorkerIdentity,
    devices: Collection[str],
    lease_s: float,
) -> int:
    """Writes a new attempt, which holds its devices, and puts the probe to running."""
    values = {
        "probe_id": probe.id,
        "number": number,
        "worker": worker.as_dict(),
        "devices": sorted(devices),
        "started_at": probe.now,
        "lease_until": probe.now + timedelta(seconds=lease_s),
    }
    made = connection.execute(_insert_attempt(), values).inserted_primary_key
    assert made is not None
    attempt_id: int = made.id
    if not holding.take(connection, attempt_id, devices):
        raise Unclaimed
    connection.execute(_run_probe(), {"probe": probe.id})
    return attempt_id


def _at_study(session: Session, study_id: str, worker: WorkerIdentity) -> datetime:
    """Locks the study and notes who is at it; when that was."""
    connection = session.connection()
    state, now = connection.execute(_study_and_clock(), {"study_id": study_id}).one()
    if state not in OPEN:
        raise Unclaimed
    if state is not StudyState.RUNNING:
        study = queue.locked_study(session, study_id)
        queue.move_study(session, study, StudyState.RUNNING, "", now)
        session.flush()
    at_it = {"worker": worker.as_dict(), "worker_seen_at": now}
    connection.execute(_note_worker(), {"study": study_id, **at_it})
    locked_at: datetime = now
    return locked_at


@cache
def _untroubled(*, any_fidelity: bool) -> Select[Any]:
    """The oldest queued probe that never lost a device."""
    lost = select(ATTEMPTS.c.id).where(*_lost_a_device()).exists()
    return _queued(any_fidelity=any_fidelity).where(~lost).limit(1)


@cache
def _with_losses(*, any_fidelity: bool) -> Select[Any]:
    """Queued probes that lost a device, oldest first, and the attempts in which they did."""
    c = ATTEMPTS.c
    columns = (c.id.label("attempt_id"), c.probe_id, c.devices, c.ended_at)
    queued = _queued(any_fidelity=any_fidelity).add_columns(*columns)
    return queued.where(*_lost_a_device())


def _queued(*, any_fidelity: bool) -> Select[Any]:
    """Queued probes of a study, oldest first, and the time."""
    which = [PROBES.c.state == ProbeState.QUEUED, PROBES.c.study_id == bindparam("study_id")]
    which += [] if any_fidelity else [PROBES.c.fidelity == bindparam("fidelity")]
    queued = select(PROBES, UtcNow().label("now")).where(*which).order_by(PROBES.c.id)
    return queued.with_for_update(skip_locked=True, of=PROBES)


def _lost_a_device() -> tuple[ColumnElement[bool], ...]:
    return (ATTEMPTS.c.probe_id == PROBES.c.id, ATTEMPTS.c.outcome == Outcome.DEVICE_LOST)


@cache
def _study_and_clock() -> Select[Any]:
    """Locks a study: its state, and the time when the lock was had, not when it was asked for."""
    locked = select(STUDIES.c.state).where(STUDIES.c.id == bindparam("study_id"))
    return select(locked.with_for_update().subquery().c.state, UtcNow())


@cache
def _attempts_of() -> Select[Any]:
    columns = (ATTEMPTS.c.probe_id, ATTEMPTS.c.outcome, ATTEMPTS.c.devices)
    return select(*columns).where(ATTEMPTS.c.probe_id == bindparam("probe"))


@cache
def _insert_attempt() -> Insert:
    return insert(ATTEMPTS).values(state=AttemptState.RUNNING, detail="")


@cache
def _run_probe() -> Update:
    return update(PROBES).where(PROBES.c.id == bindparam("probe")).values(state=ProbeState.RUNNING)


@cache
def _note_worker() -> Update:
    return update(STUDIES).where(STUDIES.c.id == bindparam("study"))
