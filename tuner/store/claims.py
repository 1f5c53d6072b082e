"""Claims: a queued probe, and the devices to run it on, given to one worker."""

# All workers of a study come through here one after another: the first statement locks the study's
# row, SQLite's transaction its file. So each statement does as much as it can, and is made once:
# to put one together takes longer than to run it. Locked, a worker and a server say five things to
# each other: study, probe, attempt (with its devices, if there are any), event, commit.

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, func, insert, or_, select, update

from tuner.core import lease
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import OPEN, Probe, ProbeState
from tuner.store.tables import AttemptState, Base, UtcNow
from tuner.store.workers import WorkerIdentity

TABLES = Base.metadata.tables
STUDIES, PROBES, ATTEMPTS = TABLES["studies"], TABLES["probes"], TABLES["attempts"]
DEVICES = TABLES["devices"]

# The time is read once the lock is had, not when it was asked for.
COME_TO_STUDY = (
    update(STUDIES)
    .where(STUDIES.c.id == bindparam("study"), STUDIES.c.state.in_(OPEN))
    .values(worker=bindparam("by"), worker_seen_at=UtcNow())
    .returning(STUDIES.c.state, UtcNow().label("now"))
)
_QUEUED = (
    PROBES.c.study_id == bindparam("study"),
    PROBES.c.state == ProbeState.QUEUED,
    or_(bindparam("any_fidelity"), PROBES.c.fidelity == bindparam("of_fidelity")),
)
_LOST = (ATTEMPTS.c.probe_id == PROBES.c.id, ATTEMPTS.c.outcome == Outcome.DEVICE_LOST)
_OLDEST = select(PROBES.c.id).where(*_QUEUED, ~exists().where(*_LOST)).order_by(PROBES.c.id)
_RUN = update(PROBES).values(state=ProbeState.RUNNING).returning(PROBES)
RUN_OLDEST = _RUN.where(PROBES.c.id == _OLDEST.limit(1).scalar_subquery())
RUN_PROBE = _RUN.where(PROBES.c.id == bindparam("probe"))
# Queued probes that lost a device, oldest first, with each attempt in which they did.
LOSSES = (
    select(PROBES.c.id, ATTEMPTS.c.id.label("attempt"), ATTEMPTS.c.devices, ATTEMPTS.c.ended_at)
    .where(*_QUEUED, *_LOST)
    .order_by(PROBES.c.id)
)
_NUMBER = select(func.count() + 1).where(ATTEMPTS.c.probe_id == bindparam("probe"))
NEW_ATTEMPT = (
    insert(ATTEMPTS)
    .values(probe_id=bindparam("probe"), number=_NUMBER.scalar_subquery())
    .values(state=AttemptState.RUNNING, detail="")
    .returning(ATTEMPTS.c.id, ATTEMPTS.c.number)
)
HOLD_DEVICES = insert(DEVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run one probe, until the lease runs out."""

    attempt_id: int  # the attempt's row, which fences every write
    study_id: str
    probe: Probe
    worker: WorkerIdentity


def run_oldest(
    connection: Connection,
    study_id: str,
    fidelity: Fidelity | None,
    devices: Collection[str],
    now: datetime,
) -> tuple[Row[Any] | None, int | None]:
    """Takes the oldest queued probe of a locked study that may run on these devices.

    Those that lost a device come after all others. If there are only such as lost one of these
    devices, and workers with others had a lease's time to take the oldest, it is to be closed:
    these would lose it in the same way.

    Returns:
        The probe's row, running now; or the id of the attempt whose probe is to be closed.
    """
    values = {"study": study_id, "any_fidelity": fidelity is None, "of_fidelity": fidelity}
    if probe := connection.execute(RUN_OLDEST, values).first():
        return probe, None
    losses = connection.execute(LOSSES, values).all()
    refused = {loss.id for loss in losses if set(loss.devices) & set(devices)}
    for loss in losses:
        if loss.id not in refused:
            return connection.execute(RUN_PROBE, {"probe": loss.id}).one(), None
    for loss in losses:
        if loss.ended_at + timedelta(seconds=lease.LEASE_S) <= now:
            return None, loss.attempt
    return None, None
