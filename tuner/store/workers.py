"""Workers that serve studies: who they are, what they have, and when they gave a sign last."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tuner.store.clock import clock, iso
from tuner.store.identity import WorkerIdentity
from tuner.store.records import LEASE_S
from tuner.store.tables import WorkerRow
from tuner.store.transactions import Transactions

KEPT_S = 7 * 24 * 3600
"""Seconds after its last sign for which a worker is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWorker:
    """A process that serves studies, as it said last."""

    id: int
    """Its row."""
    identity: WorkerIdentity
    """The process."""
    pools: tuple[str, ...]
    """Labels of studies that it serves, beside those that name none."""
    machine: Mapping[str, Any]
    """Where it runs: see :meth:`tuner.machine.Machine.from_dict`."""
    versions: Mapping[str, str]
    """Releases of the packages that probes depend on, by package."""
    started_at: str
    """When it registered, UTC in ISO 8601."""
    seen_at: str
    """When it gave a sign last, UTC in ISO 8601."""

    @property
    def name(self) -> str:
        """What people see."""
        return self.identity.name


class Workers:
    """The workers of a database. Each method is one short transaction, and raises as the store's.

    Args:
        transactions: of an open store.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def register(
        self,
        identity: WorkerIdentity,
        pools: Collection[str],
        machine: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> int:
        """Adds a worker, and forgets those that gave no sign for a week.

        Args:
            identity: its process.
            pools: labels of studies that it serves, beside those that name none.
            machine: ``Machine.as_dict()`` of where it runs.
            versions: releases of packages, as :func:`tuner.framework.installed_versions` says.

        Returns:
            Its id, for :meth:`seen` and :meth:`stopped`.
        """
        with self._transactions.write(durable=False) as session:
            now = clock(session)
            forgotten = WorkerRow.seen_at < now - timedelta(seconds=KEPT_S)
            session.execute(delete(WorkerRow).where(forgotten))
            row = WorkerRow(
                identity=identity.as_dict(),
                pools=sorted(set(pools)),
                machine=dict(machine),
                versions=dict(versions),
                started_at=now,
                seen_at=now,
            )
            session.add(row)
            session.flush()
            return row.id

    def seen(self, worker_id: int) -> bool:
        """Notes a sign of a worker; ``False`` when it must register again: it was forgotten."""
        return self._note(worker_id, stopped=False)

    def stopped(self, worker_id: int) -> bool:
        """Notes that a worker takes no more; ``False`` when it was forgotten."""
        return self._note(worker_id, stopped=True)

    def living(self, pool: str = "", lease_s: float = LEASE_S) -> list[RegisteredWorker]:
        """The workers that serve studies of a pool, or of none; see :func:`read_living`."""
        with self._transactions.read() as session:
            found = read_living(session, lease_s)
        return [worker for worker in found if not pool or pool in worker.pools]

    def _note(self, worker_id: int, *, stopped: bool) -> bool:
        with self._transactions.write(durable=False) as session:
            row = session.get(WorkerRow, worker_id, with_for_update=True)
            if row is None:
                return False
            row.seen_at = clock(session)
            row.stopped_at = row.seen_at if stopped else None
            return True


def read_living(session: Session, lease_s: float = LEASE_S) -> list[RegisteredWorker]:
    """Workers that gave a sign within a lease's time and did not stop, oldest first.

    One whose process is known to be gone, which can be told of this machine's, is not living.
    """
    since = clock(session) - timedelta(seconds=lease_s)
    signed = (WorkerRow.seen_at > since, WorkerRow.stopped_at.is_(None))
    rows = session.scalars(select(WorkerRow).where(*signed).order_by(WorkerRow.id)).all()
    found = (_registered(row) for row in rows)
    return [worker for worker in found if worker.identity.is_alive() is not False]


def _registered(row: WorkerRow) -> RegisteredWorker:
    return RegisteredWorker(
        id=row.id,
        identity=WorkerIdentity.from_dict(row.identity),
        pools=tuple(row.pools),
        machine=row.machine,
        versions=row.versions,
        started_at=_text(row.started_at),
        seen_at=_text(row.seen_at),
    )


def _text(moment: datetime) -> str:
    return iso(moment) or ""
