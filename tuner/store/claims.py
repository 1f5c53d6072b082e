"""Claims: a queued probe, and the devices to run it on, given to one worker.

All workers of a study come through here one after another, while its row's lock is held, or
SQLite's: statements are few, and made once, and on PostgreSQL the usual claim is one of them
(:mod:`tuner.store.claims_at_once`). The lock comes first, so that a study that ends while probes
are claimed withdraws all that nobody has; see :mod:`tuner.store.queue`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.store import claim_statements as statements
from tuner.store import claims_at_once, queue
from tuner.store import devices as holding
from tuner.store.records import Claim, Wanted
from tuner.store.rows import probe_of
from tuner.store.transactions import Transactions
from tuner.study import OPEN, ProbeState, StudyState


class Unclaimed(Exception):  # noqa: N818 - it is no error, but ends the transaction as one does
    """Nothing can be claimed, and what the transaction has written meanwhile is to be undone."""


def claim(transactions: Transactions, wanted: Wanted) -> Claim | None:
    """Gives the study's oldest queued probe to a worker, and puts the study to running.

    With it goes the right to the devices; nothing is given when another attempt has one of them.
    A claim that is sent again, because it is not known what became of it, has the same probe.
    """
    if transactions.engine.dialect.name == "postgresql":
        with suppress(IntegrityError), transactions.alone() as connection:
            if row := claims_at_once.claim(connection, wanted):
                return _claim_of(row, row.attempt_id, wanted)
    with suppress(Unclaimed), transactions.write(durable=False) as session:
        if found := _claim(session, wanted):
            return found
    with transactions.read() as session:
        return _had_before(session.connection(), wanted)


def _claim(session: Session, wanted: Wanted) -> Claim | None:
    """The claim in a writing transaction, also where a study is to be put to running, or a probe
    lost a device.

    Raises:
        Unclaimed: another has a device now, or this key has claimed before.
    """
    connection = session.connection()
    found = connection.execute(statements.study_and_clock(), {"of_study": wanted.study_id}).first()
    if found is None or found.state not in OPEN:
        return None
    if holding.is_any_held(connection, wanted.devices):
        return None
    probe = _oldest(session, wanted, found.now)
    if probe is None:
        return None
    attempt_id = _new_attempt(connection, probe, found.now, wanted)
    _put_to_running(session, wanted, found.state, found.now)
    told = {"attempt": probe.number, "worker": wanted.worker.name}
    state = {"state": str(ProbeState.RUNNING)}
    queue.tell_probe(session, wanted.study_id, probe, found.now, {**state, **told})
    return _claim_of(probe, attempt_id, wanted)


def _oldest(session: Session, wanted: Wanted, now: datetime) -> Row[Any] | None:
    """The oldest queued probe; those that lost a device come after all others."""
    which = {"of_study": wanted.study_id, "of_fidelity": wanted.fidelity}
    any_fidelity = wanted.fidelity is None
    connection = session.connection()
    probe = connection.execute(statements.untroubled(any_fidelity=any_fidelity), which).first()
    if probe is not None:
        return probe
    lost = connection.execute(statements.with_losses(any_fidelity=any_fidelity), which).all()
    return _after_a_loss(session, lost, wanted, now)


def _after_a_loss(
    session: Session, lost: Sequence[Row[Any]], wanted: Wanted, now: datetime
) -> Row[Any] | None:
    """The oldest queued probe that lost a device, and none of those that are wanted.

    If there are only such as lost one of them, the oldest is ended, unless workers with other
    devices still have time to take it: a device that disappeared would end it in the same way.
    """
    barred = {one.id for one in lost if set(one.devices) & set(wanted.devices)}
    for row in lost:
        if row.id not in barred:
            return row
    over = [row for row in lost if row.ended_at + timedelta(seconds=wanted.lease_s) <= now]
    if over:
        queue.close_unwanted(session, over[0].attempt_id)
    return None


def _new_attempt(connection: Connection, probe: Row[Any], now: datetime, wanted: Wanted) -> int:
    """Writes a new attempt, which holds its devices, and puts the probe to running."""
    values = {
        "probe_id": probe.id,
        "number": probe.number,
        "worker": wanted.worker.as_dict(),
        "devices": list(wanted.devices),
        "started_at": now,
        "lease_until": now + timedelta(seconds=wanted.lease_s),
        "claim_key": wanted.key,
    }
    try:
        made = connection.execute(statements.insert_attempt(), values).inserted_primary_key
    except IntegrityError as error:
        if "claim_key" in str(error.orig):  # the column's name, or its index's
            raise Unclaimed from error
        raise
    assert made is not None
    attempt_id: int = made.id
    if not holding.take(connection, attempt_id, wanted.devices):
        raise Unclaimed
    connection.execute(statements.run_probe(), {"probe": probe.id})
    return attempt_id


def _put_to_running(session: Session, wanted: Wanted, state: StudyState, now: datetime) -> None:
    """Puts the study to running, unless it is, and notes who is at it."""
    if state is not StudyState.RUNNING:
        study = queue.locked_study(session, wanted.study_id)
        queue.move_study(session, study, StudyState.RUNNING, "", now)
        session.flush()
    at_it = {"worker": wanted.worker.as_dict(), "worker_seen_at": now}
    session.connection().execute(statements.note_worker(), {"study": wanted.study_id, **at_it})


def _claim_of(probe: Row[Any], attempt_id: int, wanted: Wanted) -> Claim:
    running = replace(probe_of(probe, None), state=ProbeState.RUNNING)
    return Claim(
        attempt_id=attempt_id, study_id=wanted.study_id, probe=running, worker=wanted.worker
    )


def _had_before(connection: Connection, wanted: Wanted) -> Claim | None:
    """What was claimed by the same key, and is still held."""
    row = connection.execute(statements.by_key(), {"key": wanted.key}).first()
    return _claim_of(row, row.attempt_id, wanted) if row else None
