"""Claims: a queued probe, and the devices to run it on, given to one worker."""

# All workers of a study come through here one after another, while its row's lock is held, or
# SQLite's. So the statements are few, and made once: to put one together takes longer than to run
# it.

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, func, insert, or_, select, update

from tuner.core import lease
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import OPEN, Probe, ProbeState, StudyState
from tuner.store.rows import probe_of
from tuner.store.tables import AttemptState, Base, UtcNow
from tuner.store.workers import WorkerIdentity

TABLES = Base.metadata.tables
STUDIES, PROBES, ATTEMPTS = TABLES["studies"], TABLES["probes"], TABLES["attempts"]
DEVICES = TABLES["devices"]

# The time is read once the lock is had, not when it was asked for.
_LOCKED = select(STUDIES.c.state).where(STUDIES.c.id == bindparam("study")).with_for_update()
LOCK_STUDY = select(_LOCKED.subquery().c.state, UtcNow().label("now"))

_TRIED = select(func.count()).where(ATTEMPTS.c.probe_id == PROBES.c.id).correlate(PROBES)
_LOST = (ATTEMPTS.c.probe_id == PROBES.c.id, ATTEMPTS.c.outcome == Outcome.DEVICE_LOST)
_QUEUED = (
    select(PROBES, _TRIED.scalar_subquery().label("tried"))
    .where(PROBES.c.study_id == bindparam("study"), PROBES.c.state == ProbeState.QUEUED)
    .where(or_(bindparam("any_fidelity"), PROBES.c.fidelity == bindparam("fidelity")))
    .order_by(PROBES.c.id)
)
# The oldest queued probe that never lost a device.
OLDEST_QUEUED = _QUEUED.where(~exists().where(*_LOST)).limit(1)
# Queued probes that lost a device, oldest first, with each attempt in which they did.
LOSSES = _QUEUED.where(*_LOST).add_columns(
    ATTEMPTS.c.id.label("attempt_id"), ATTEMPTS.c.devices, ATTEMPTS.c.ended_at
)

NEW_ATTEMPT = insert(ATTEMPTS).values(state=AttemptState.RUNNING, detail="")
HOLD_DEVICE = insert(DEVICES)
RUN_PROBE = update(PROBES).where(PROBES.c.id == bindparam("probe")).values(state=ProbeState.RUNNING)
NOTE_WORKER = update(STUDIES).where(STUDIES.c.id == bindparam("study"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run one probe, until the lease runs out."""

    attempt_id: int
    """The attempt's row, which fences every write."""
    study_id: str
    """The probe's study."""
    probe: Probe
    """The probe to run."""
    worker: WorkerIdentity
    """The worker that holds it."""


def lock_study(connection: Connection, study_id: str) -> tuple[StudyState, datetime] | None:
    """Locks an open study: its state, and the time; ``None`` when it is at its end, or unknown."""
    found = connection.execute(LOCK_STUDY, {"study": study_id}).first()
    return (found.state, found.now) if found and found.state in OPEN else None


def oldest_queued(
    connection: Connection,
    study_id: str,
    fidelity: Fidelity | None,
    devices: list[str],
    now: datetime,
) -> tuple[Row[Any] | None, int | None]:
    """The oldest queued probe of a locked study that may run on these devices.

    Those that lost a device come after all others. If there are only such as lost one of these
    devices, and workers with others had a lease's time to take the oldest, it is to be closed:
    these would lose it in the same way.

    Returns:
        The probe's row, with the count of its attempts as ``tried``; or the id of the attempt
        whose probe is to be closed; or neither.
    """
    values = {"study": study_id, "any_fidelity": fidelity is None, "fidelity": fidelity}
    if probe := connection.execute(OLDEST_QUEUED, values).first():
        return probe, None
    losses = connection.execute(LOSSES, values).all()
    refused = {loss.id for loss in losses if set(loss.devices) & set(devices)}
    for loss in losses:
        if loss.id not in refused:
            return loss, None
    for loss in losses:
        if loss.ended_at + timedelta(seconds=lease.LEASE_S) <= now:
            return None, loss.attempt_id
    return None, None


def start_attempt(
    connection: Connection,
    probe: Row[Any],
    worker: WorkerIdentity,
    devices: list[str],
    now: datetime,
) -> Claim:
    """Gives a probe to a worker: writes the attempt and its devices, and who is at the study.

    Raises:
        IntegrityError: another attempt has one of the devices.
    """
    values = {
        "probe_id": probe.id,
        "number": probe.tried + 1,
        "worker": worker.as_dict(),
        "devices": devices,
        "started_at": now,
        "lease_until": now + timedelta(seconds=lease.LEASE_S),
    }
    made = connection.execute(NEW_ATTEMPT, values).inserted_primary_key
    assert made is not None
    if devices:  # sorted, so that no two claims wait for each other
        rows = [{"device": device, "attempt_id": made.id} for device in sorted(devices)]
        connection.execute(HOLD_DEVICE, rows)
    connection.execute(RUN_PROBE, {"probe": probe.id})
    at_it = {"worker": worker.as_dict(), "worker_seen_at": now}
    connection.execute(NOTE_WORKER, {"study": probe.study_id, **at_it})
    running = replace(probe_of(probe, None), state=ProbeState.RUNNING)
    return Claim(attempt_id=made.id, study_id=probe.study_id, probe=running, worker=worker)
