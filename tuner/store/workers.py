"""Workers: who they are, whether their processes live, and those that serve studies now."""

import os
import platform
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, select
from sqlalchemy.orm import Session

from tuner.core import lease
from tuner.core.study import StudyState
from tuner.serialization import Plain
from tuner.store.engine import Transactions
from tuner.store.tables import (
    AttemptRow,
    AttemptState,
    ProbeRow,
    StudyRow,
    UtcNow,
    WorkerRow,
    clock,
    from_row,
)

# Seconds after its last sign for which a worker is remembered.
KEPT_S = 7 * 24 * 3600
# The system's boot time, from which starts are counted, is read separately and in whole seconds,
# and no pid comes round again so soon.
# Seconds: start times of a pid that are nearer than this are of the same process.
START_TOLERANCE_S = 2.0

# Part of a lease in which a worker of which nothing is heard has missed two renewals.
SILENT = 1 / 3

# The end of the last lease of a study's probes, and the last sign of the worker that is at it. Each
# lease is renewed by itself: an earlier end of another tells of no silence.
_HELD_UNTIL = (
    select(func.max(AttemptRow.lease_until))
    .join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
    .where(ProbeRow.study_id == StudyRow.id, AttemptRow.state == AttemptState.RUNNING)
    .correlate(StudyRow)
    .scalar_subquery()
)
_SEEN_AT = select(func.max(WorkerRow.seen_at)).where(
    WorkerRow.identity == StudyRow.worker, WorkerRow.stopped_at.is_(None)
)
_RUNNING = select(
    StudyRow.id,
    StudyRow.asked_at,
    StudyRow.worker,
    StudyRow.worker_seen_at,
    _HELD_UNTIL.label("held_until"),
    _SEEN_AT.correlate(StudyRow).scalar_subquery().label("seen_at"),
    UtcNow().label("now"),
).where(StudyRow.state == StudyState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity(Plain):
    """A process that runs probes, told apart from every other one, later ones included."""

    host: str
    boot_id: str
    """This boot of the machine, and the process namespace in which ``pid`` has its meaning."""
    pid: int
    started: float
    """Start of the process, in seconds since the boot; setting the clock does not move it."""
    name: str = ""

    @classmethod
    def of_this_process(cls, name: str = "") -> "WorkerIdentity":
        """The running process; its name is ``host:pid`` unless given."""
        host, pid = socket.gethostname(), os.getpid()
        started = _process_start_s(pid)
        assert started is not None, "this process runs"
        name = name or f"{host}:{pid}"
        return cls(host=host, boot_id=_boot_id(), pid=pid, started=started, name=name)

    def is_alive(self) -> bool | None:
        """True if the process lives; ``None`` when that cannot be seen from this machine."""
        if (self.host, self.boot_id) != (socket.gethostname(), _boot_id()):
            return None
        started = _process_start_s(self.pid)
        if started is None:
            if os.name == "posix":  # elsewhere signal 0 is one that ends a process
                try:
                    os.kill(self.pid, 0)
                except PermissionError:  # another user's process, which systems may hide
                    return None
                except OSError:
                    return False
            return False
        return abs(started - self.started) < START_TOLERANCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWorker:
    """A process that serves studies, as it said last."""

    id: int
    identity: WorkerIdentity
    pools: tuple[str, ...]  # labels of studies that it serves, beside those without one
    machine: Mapping[str, Any]  # its machine: see :meth:`tuner.machine.Machine.from_dict`
    versions: Mapping[str, str]  # releases of the packages that probes depend on, by package
    started_at: str
    seen_at: str

    @property
    def name(self) -> str:
        return self.identity.name


class Workers:
    """The workers of a database. Each method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def register(
        self,
        identity: WorkerIdentity,
        pools: Collection[str],
        machine: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> int:
        """Adds a worker, and forgets those that gave no sign for a week; its id."""
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

    def silent_here(self, pool: str = "") -> list[RegisteredWorker]:
        """Workers of a pool, or all, whose processes are there on this machine, and have given no
        sign for a lease's time: they are stopped, or cannot write into the database."""
        with self._transactions.read() as session:
            since = clock(session) - timedelta(seconds=lease.LEASE_S)
            silent = (WorkerRow.seen_at <= since, WorkerRow.stopped_at.is_(None))
            found = _read(session, *silent)
        ours = (one for one in found if not pool or pool in one.pools)
        return [one for one in ours if one.identity.is_alive()]

    def living(self, pool: str = "") -> list[RegisteredWorker]:
        """The living workers that serve studies of a pool, or of none; see :func:`read_living`."""
        with self._transactions.read() as session:
            found = read_living(session)
        return [worker for worker in found if not pool or pool in worker.pools]

    def _note(self, worker_id: int, *, stopped: bool) -> bool:
        with self._transactions.write(durable=False) as session:
            row = session.get(WorkerRow, worker_id, with_for_update=True)
            if row is None:
                return False
            row.seen_at = clock(session)
            row.stopped_at = row.seen_at if stopped else None
            return True


def read_living(session: Session) -> list[RegisteredWorker]:
    """Workers that gave a sign within a lease's time and did not stop, oldest first; none of this
    machine whose process is gone."""
    since = clock(session) - timedelta(seconds=lease.LEASE_S)
    signed = (WorkerRow.seen_at > since, WorkerRow.stopped_at.is_(None))
    found = _read(session, *signed)
    return [worker for worker in found if worker.identity.is_alive() is not False]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A worker of which nothing is heard, by the database's clock."""

    since: datetime
    has_left: bool = False
    """Whether it has left its study, which is queued when the next worker comes."""

    @property
    def until(self) -> datetime:
        """Time at which the probe that it holds is given up."""
        return self.since + timedelta(seconds=lease.LEASE_S)


def silence_of(lease_until: datetime, now: datetime) -> Silence | None:
    """The silence of a worker that has missed two renewals of its lease, or more."""
    since = lease_until - timedelta(seconds=lease.LEASE_S)
    is_silent = since + timedelta(seconds=lease.LEASE_S * SILENT) <= now
    return Silence(since=since) if is_silent else None


def read_silent(
    session: Session, studies: Iterable[StudyRow | Row[Any]] | None = None
) -> dict[str, Silence]:
    """Running studies, of all or of these rows, of whose worker nothing is heard.

    It has left a study when the leases of its probes are over, or when it holds none and its
    process is gone or, where that cannot be seen from here, silent for as long.
    """
    wanted = _RUNNING
    if studies is not None:
        if not (running := [one.id for one in studies if one.state is StudyState.RUNNING]):
            return {}  # as mostly, and without a query
        wanted = _RUNNING.where(StudyRow.id.in_(running))
    patience = timedelta(seconds=lease.LEASE_S)
    silent = {}
    for row in session.execute(wanted):
        is_alive, sign = None, row.held_until and row.held_until - patience
        if sign is None:
            is_alive = WorkerIdentity.from_dict(row.worker).is_alive() if row.worker else None
            sign = max(filter(None, (row.seen_at, row.worker_seen_at)), default=row.asked_at)
        if sign + patience <= row.now if is_alive is None else not is_alive:
            silent[row.id] = Silence(since=sign, has_left=True)
        elif row.held_until and (found := silence_of(row.held_until, row.now)):
            silent[row.id] = found
    return silent


def state_of(row: StudyRow | Row[Any], silent: Mapping[str, Silence]) -> dict[str, Any]:
    """The ``state`` of a study and its ``reason``, which is another than its row's of one of those
    that :func:`read_silent` finds."""
    if (one := silent.get(row.id)) is None:
        return {"state": row.state, "reason": row.reason}
    if one.has_left:
        reason = f"its worker gave no sign of life since {one.since:%H:%M:%S} UTC"
        return {"state": StudyState.QUEUED, "reason": reason}
    reason = f"its worker has not been heard of since {one.since:%H:%M:%S} UTC; its probe"
    return {"state": row.state, "reason": f"{reason} is given up at {one.until:%H:%M:%S}"}


def _read(session: Session, *where: ColumnElement[bool]) -> list[RegisteredWorker]:
    return [
        from_row(
            RegisteredWorker,
            row,
            identity=WorkerIdentity.from_dict(row.identity),
            pools=tuple(row.pools),
        )
        for row in session.scalars(select(WorkerRow).where(*where).order_by(WorkerRow.id))
    ]


def _process_start_s(pid: int) -> float | None:
    """Seconds from the boot to the process's start; ``None`` if it is not seen or has ended."""
    import psutil  # not needed to read a database

    try:
        process = psutil.Process(pid)
        # A zombie has ended, though its parent has not looked yet.
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time() - psutil.boot_time())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _boot_id() -> str:
    """An id that changes with every boot and differs between containers of one machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        import psutil

        return f"{platform.system()}-{int(psutil.boot_time())}"
