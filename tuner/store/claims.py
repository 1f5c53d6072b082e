"""Claims: a queued probe, and the devices to run it on, given to one worker."""

# All workers of a study come through here one after another: the first statement locks the study's
# row, SQLite's transaction its file. So statements are few, and made once: to put one together
# takes longer than to run it. PostgreSQL is sent the usual claim in one message, so that no worker
# holds the lock while it is waited for, even one that is stopped or cut off; whatever is unusual is
# left to the statements of both.

import json
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
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import OPEN, Probe, ProbeRequest, ProbeState, StudyState
from tuner.store.engine import Transactions
from tuner.store.tables import AttemptState, Base, EventKind, UtcNow
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
    ``attempt`` and ``attempt_number``."""
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
    return attempt.returning(
        made.id.label("attempt"), made.number.label("attempt_number"), *of_probe
    )


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

# PostgreSQL's message. Its second statement sees what was committed before the study's lock was
# had, as it alone would not. It is prepared, as to plan it takes longer than to run it.
LOCK_AND_CLAIM = """
SELECT FROM studies WHERE id = %(study)s FOR NO KEY UPDATE;
EXECUTE claim_oldest (
    %(study)s, %(fidelity)s, %(worker)s, %(name)s, %(devices)s, %(held)s, %(lease)s)
"""
# By the numbers of that list.
CLAIM_OLDEST = f"""
PREPARE claim_oldest (text, text, text, json, text, text[], interval) AS
WITH oldest AS (
    SELECT probes.id, tries.attempt_number
    FROM studies
    JOIN probes ON probes.study_id = studies.id AND probes.state = '{ProbeState.QUEUED}'
    CROSS JOIN LATERAL (
        SELECT count(*) + 1 AS attempt_number,
            count(*) FILTER (WHERE outcome = '{Outcome.DEVICE_LOST}') AS losses
        FROM attempts WHERE probe_id = probes.id
    ) AS tries
    WHERE studies.id = $1 AND studies.state = '{StudyState.RUNNING}' AND tries.losses = 0
        AND probes.fidelity = coalesce($2, probes.fidelity)
    ORDER BY probes.id
    LIMIT 1
), probe AS (
    UPDATE probes SET state = '{ProbeState.RUNNING}' FROM oldest WHERE probes.id = oldest.id
    RETURNING probes.*, oldest.attempt_number
), attempt AS (
    INSERT INTO attempts
        (probe_id, number, state, detail, worker, devices, started_at, lease_until)
    SELECT id, attempt_number, '{AttemptState.RUNNING}', '', $3, $5, now, now + $7
    FROM probe, date_trunc('milliseconds', clock_timestamp()) AS now
    RETURNING id, probe_id, started_at
), device AS (
    INSERT INTO devices (device, attempt_id) SELECT unnest($6), id FROM attempt
), study AS (
    UPDATE studies SET worker = $3, worker_seen_at = started_at
    FROM attempt WHERE studies.id = $1
), event AS (
    INSERT INTO events (study_id, kind, at, data)
    SELECT study_id, '{EventKind.PROBE}', started_at, json_build_object(
        'number', number, 'settings', settings, 'repetition', repetition,
        'fidelity', fidelity, 'state', state, 'attempt', attempt_number, 'worker', $4)
    FROM probe, attempt
)
SELECT attempt.id, probe.id, number, settings, fidelity, repetition, accumulation_counts::json,
    memory_limit_bytes
FROM (
    SELECT FROM probes WHERE study_id = $1 AND state = '{ProbeState.QUEUED}'
        AND fidelity = coalesce($2, fidelity) LIMIT 1
) AS any_queued
LEFT JOIN (probe CROSS JOIN attempt) ON true
"""  # noqa: S608  (names of states alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run one probe, until the lease runs out."""

    attempt_id: int  # the attempt's row, which fences every write
    study_id: str
    probe: Probe
    worker: WorkerIdentity


def claim_at_once(
    transactions: Transactions,
    study_id: str,
    worker: WorkerIdentity,
    fidelity: Fidelity | None,
    devices: list[str],
) -> tuple[Claim | None, bool]:
    """Claims the oldest queued probe of a running study that never lost a device, on PostgreSQL.

    Returns:
        The claim; and true if there is none although a probe is queued, which the study's state
        or lost devices keep from being claimed so.
    """
    values = {
        "study": study_id,
        "fidelity": fidelity and str(fidelity),
        "worker": json.dumps(worker.as_dict()),
        "name": json.dumps(worker.name),
        "devices": json.dumps(devices),
        "held": devices,
        "lease": timedelta(seconds=lease.LEASE_S),
    }
    row = transactions.message(LOCK_AND_CLAIM, values, CLAIM_OLDEST)
    if row is None or row[0] is None:
        return None, row is not None
    attempt_id, row_id, number, settings, of_fidelity, repetition, counts, limit_bytes = row
    request = ProbeRequest(
        settings=parse_settings(settings),
        fidelity=Fidelity(of_fidelity),
        repetition=repetition,
        accumulation_counts=tuple(counts),
    )
    probe = Probe(
        id=number,
        row_id=row_id,
        request=request,
        state=ProbeState.RUNNING,
        memory_limit_bytes=limit_bytes,
    )
    return Claim(attempt_id=attempt_id, study_id=study_id, probe=probe, worker=worker), False


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
