"""Claims: a queued probe, and the devices to run it on, given to one worker."""

# All workers of a study come through here one after another: the first statement locks the study's
# row, SQLite's transaction its file. So each statement does as much as it can, and is made once:
# to put one together takes longer than to run it. Locked, a worker waits for the server twice: for
# the attempt, and for all that follows from it, which is sent with the commit.

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

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
_EARLIER = ATTEMPTS.alias("earlier")
_LOST = (_EARLIER.c.probe_id == PROBES.c.id, _EARLIER.c.outcome == Outcome.DEVICE_LOST)


def _attempt(*where: ColumnElement[bool]) -> ReturningInsert[Any]:
    """A new attempt of the oldest probe that is so; it returns the probe's columns beside its own
    ``attempt`` and ``number``."""
    made = ATTEMPTS.c
    number = select(func.count() + 1).where(_EARLIER.c.probe_id == PROBES.c.id).scalar_subquery()
    values = {
        made.probe_id: PROBES.c.id,
        made.number: number,
        made.state: literal(AttemptState.RUNNING, made.state.type),
        made.detail: literal(""),
        **{column: bindparam(column.name, type_=column.type) for column in _GIVEN},
    }
    oldest = select(*values.values()).where(*where).order_by(PROBES.c.id).limit(1)
    # of the new row, whose table SQLAlchemy does not name on SQLite
    its = PROBES.c.id == literal_column(made.probe_id.name)
    of_probe = (select(one).where(its).scalar_subquery().label(one.name) for one in PROBES.c)
    attempt = insert(ATTEMPTS).from_select(list(values), oldest)
    return attempt.returning(made.id.label("attempt"), made.number, *of_probe)


_GIVEN = [ATTEMPTS.c[name] for name in ("worker", "devices", "started_at", "lease_until")]
OF_OLDEST = _attempt(*_QUEUED, ~exists().where(*_LOST))
OF_PROBE = _attempt(PROBES.c.id == bindparam("probe"))
RUN = update(PROBES).where(PROBES.c.id == bindparam("probe")).values(state=ProbeState.RUNNING)
# Queued probes that lost a device, oldest first, with each attempt in which they did.
LOSSES = (
    select(PROBES.c.id, _EARLIER.c.id.label("attempt"), _EARLIER.c.devices, _EARLIER.c.ended_at)
    .where(*_QUEUED, *_LOST)
    .order_by(PROBES.c.id)
)
HOLD_DEVICES = insert(DEVICES).inline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run one probe, until the lease runs out."""

    attempt_id: int  # the attempt's row, which fences every write
    study_id: str
    probe: Probe
    worker: WorkerIdentity


def attempt_oldest(
    connection: Connection,
    study_id: str,
    fidelity: Fidelity | None,
    by: Mapping[str, Any],
    devices: Collection[str],
    now: datetime,
) -> tuple[Row[Any] | None, int | None]:
    """Enters an attempt of the oldest queued probe of a locked study that may run on these devices.

    Those that lost a device come after all others. If there are only such as lost one of these
    devices, and workers with others had a lease's time to take the oldest, it is to be closed:
    these would lose it in the same way.

    Returns:
        The attempt with its probe, still queued; or the id of the attempt whose probe is to be
        closed.
    """
    which = {"study": study_id, "any_fidelity": fidelity is None, "of_fidelity": fidelity}
    until = now + timedelta(seconds=lease.LEASE_S)
    values = {"worker": by, "devices": devices, "started_at": now, "lease_until": until}
    if made := connection.execute(OF_OLDEST, {**which, **values}).first():
        return made, None
    losses = connection.execute(LOSSES, which).all()
    refused = {loss.id for loss in losses if set(loss.devices) & set(devices)}
    for loss in losses:
        if loss.id not in refused:
            return connection.execute(OF_PROBE, {"probe": loss.id, **values}).one(), None
    for loss in losses:
        if loss.ended_at + timedelta(seconds=lease.LEASE_S) <= now:
            return None, loss.attempt
    return None, None
