"""A claim in one statement, for PostgreSQL: what is usual, and nothing else.

Whoever claims has the study's lock until the commit, so that all who claim at a study wait for
each other. In one statement, which is its own transaction, the lock is not held while a worker
and the server wait for each other's next word.

The statement sees the database as it was when it was sent, before it had the lock; of rows that
it locks it sees the newest. What may be wrong of the rest, the number of a probe that was tried
again in that time, breaks a constraint, and the whole of it is undone.
"""

from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    BindParameter,
    ColumnElement,
    Connection,
    Interval,
    Row,
    Select,
    Text,
    any_,
    bindparam,
    cast,
    func,
    insert,
    literal,
    literal_column,
    select,
    update,
)

from tuner.store.claim_statements import (
    ATTEMPTS,
    DEVICES,
    EVENTS,
    PROBES,
    STUDIES,
    lost_a_device,
    next_number,
    queued,
)
from tuner.store.records import AttemptState, EventKind, Wanted
from tuner.store.tables import JsonText, UtcNow
from tuner.study import ProbeState, StudyState

# No name of these is a column's: SQLAlchemy would set that column in every UPDATE.
STUDY: BindParameter[str] = bindparam("of_study")
WORKER = bindparam("by_worker", type_=JsonText())
WORKER_NAME = bindparam("by_name", type_=JsonText())
DEVICES_WANTED = bindparam("on_devices", type_=ARRAY(Text))
DEVICES_NOTED = bindparam("on_devices_noted", type_=JsonText())
LEASE = bindparam("for_seconds", type_=Interval())
KEY: BindParameter[str] = bindparam("by_key")


def claim(connection: Connection, wanted: Wanted) -> Row[Any] | None:
    """The probe that was claimed, with ``attempt_id``; ``None`` unless all is as it usually is.

    That is: the study runs, and a probe is queued in it that never lost a device. The connection
    must have each statement be a transaction.

    Raises:
        IntegrityError: another has a device, or the probe, now, or the key was used before.
    """
    values = {
        STUDY.key: wanted.study_id,
        "of_fidelity": wanted.fidelity,
        WORKER.key: wanted.worker.as_dict(),
        WORKER_NAME.key: wanted.worker.name,
        DEVICES_WANTED.key: list(wanted.devices),
        DEVICES_NOTED.key: list(wanted.devices),
        LEASE.key: timedelta(seconds=wanted.lease_s),
        KEY.key: wanted.key,
    }
    return connection.execute(_whole(any_fidelity=wanted.fidelity is None), values).first()


@cache
def _whole(*, any_fidelity: bool) -> Select[Any]:
    """Everything that a claim does, as parts that are run in the order in which they need each
    other: study, probe, attempt, and what follows from that."""
    probe = _probe(any_fidelity=any_fidelity)
    attempt = _attempt(probe)
    claimed = select(*probe.c, attempt.c.id.label("attempt_id"))
    return claimed.where(attempt.c.probe_id == probe.c.id).add_cte(
        _devices(attempt), _running(attempt), _at_it(probe, attempt), _told(probe, attempt)
    )


def _probe(*, any_fidelity: bool) -> CTE:
    """The oldest queued probe that never lost a device. It is looked for once the study's lock is
    had, which is asked for first: a study that ends meanwhile has no probe to give."""
    runs = (STUDIES.c.id == STUDY, STUDIES.c.state == StudyState.RUNNING)
    study = select(STUDIES.c.id).where(*runs).with_for_update().cte("study")
    held = select(DEVICES.c.device).where(DEVICES.c.device == any_(DEVICES_WANTED)).exists()
    probes = queued(select(study.c.id).scalar_subquery(), any_fidelity=any_fidelity)
    return probes.where(~lost_a_device(), ~held).limit(1).cte("probe")


def _attempt(probe: CTE) -> CTE:
    """Its new attempt."""
    numbered = select(probe.c.id, next_number(probe.c.id), UtcNow().label("now")).cte("numbered")
    c = ATTEMPTS.c
    values = {
        c.probe_id: numbered.c.id,
        c.number: numbered.c.number,
        c.state: literal(AttemptState.RUNNING, c.state.type),
        c.detail: literal(""),
        c.worker: WORKER,
        c.devices: DEVICES_NOTED,
        c.started_at: numbered.c.now,
        c.lease_until: numbered.c.now + LEASE,
        c.claim_key: KEY,
    }
    made = insert(ATTEMPTS).from_select(list(values), select(*values.values()))
    return made.returning(c.id, c.probe_id, c.number, c.started_at).cte("attempt")


def _devices(attempt: CTE) -> CTE:
    """What it holds, written in the order in which all write them."""
    named = func.unnest(DEVICES_WANTED).table_valued(
        "device", with_ordinality="place", joins_implicitly=True
    )
    device = named.render_derived()
    rows = select(device.c.device, attempt.c.id).order_by(device.c.place)
    return insert(DEVICES).from_select([DEVICES.c.device, DEVICES.c.attempt_id], rows).cte("held")


def _running(attempt: CTE) -> CTE:
    """Puts the probe to running."""
    which = update(PROBES).where(PROBES.c.id == attempt.c.probe_id)
    return which.values(state=ProbeState.RUNNING).cte("running")


def _at_it(probe: CTE, attempt: CTE) -> CTE:
    """Notes who is at the study."""
    mine = (STUDIES.c.id == probe.c.study_id, probe.c.id == attempt.c.probe_id)
    which = update(STUDIES).where(*mine)
    return which.values(worker=WORKER, worker_seen_at=attempt.c.started_at).cte("at_it")


def _told(probe: CTE, attempt: CTE) -> CTE:
    """The event, as :func:`tuner.store.queue.tell_probe` writes it. Its id is drawn after the
    study's lock was had, as the ids of a study's events must be."""
    data = {
        "probe": probe.c.id,
        "settings": probe.c.settings,
        "repetition": probe.c.repetition,
        "state": literal_column(f"'{ProbeState.RUNNING}'"),
        "attempt": attempt.c.number,
        "worker": cast(WORKER_NAME, JSON),
    }
    words = [word for name, value in data.items() for word in (literal_column(f"'{name}'"), value)]
    c = EVENTS.c
    values: dict[ColumnElement[Any], ColumnElement[Any]] = {
        c.study_id: probe.c.study_id,
        c.kind: literal(EventKind.PROBE, c.kind.type),
        c.at: attempt.c.started_at,
        c.data: cast(func.json_build_object(*words), Text),
    }
    rows = select(*values.values()).where(attempt.c.probe_id == probe.c.id)
    return insert(EVENTS).from_select(list(values), rows).cte("told")
