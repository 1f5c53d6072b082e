"""The tables, and the words in their columns. A change needs a migration; tests compare both.

studies ──< probes ──< attempts        one running attempt per probe, by a partial unique index
   │          │           └──< devices    held by a running attempt, each by one only
   │          └──── measurements       one per probe
   ├──< events
   ├──── summaries                     one per study at most: its answer in one line
   └──< requests                       answered before, by their idempotency keys
dry_runs, checks, calibrations         learned once, used for all studies
workers                                processes that serve studies, as they last reported
keys ──< sessions, audit               who may use the service, who signed in, and what they did
"""

import json
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from tuner.core.measurement import CheckState, Fidelity, Outcome
from tuner.core.study import ProbeState, StudyState

T = TypeVar("T")

# Not Alembic's own name, which other programs use in databases that may be shared.
VERSION_TABLE = "tuner_alembic_version"

STATUS_LENGTH = 32

# A probe has any number of attempts, and at most one that runs.
RUNNING = "state = 'running'"


class AttemptState(StrEnum):
    """State of an attempt of a probe. Only a running one may record."""

    RUNNING = "running"  # its worker holds the lease
    DONE = "done"  # its worker recorded an outcome
    LOST = "lost"  # the lease ran out, or its worker's process is gone
    GIVEN_BACK = "given_back"  # its worker had to stop; it does not count as a try


class EventKind(StrEnum):
    """Kind of an event, which decides what its data holds."""

    ASKED = "asked"  # the question was asked: {"again", "terms"}
    STUDY = "study"  # the study moved: {"before", "state", "reason"}
    PROBE = "probe"  # a probe moved: {"number", "settings", "state", "attempt", ...}
    LABELS = "labels"  # labels were put on it, or taken off: {"labels"}, as they are now


class Scope(StrEnum):
    """Rights of a key; each one allows what those before it do."""

    READ = "read"  # see studies and metrics
    SUBMIT = "submit"  # ask questions, and cancel studies
    ADMIN = "admin"  # see who did what, and delete studies


class UtcTime(TypeDecorator[datetime]):
    """A moment, always aware and in UTC, also in SQLite, which keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON kept as text: a diverged loss is NaN, which PostgreSQL's own JSON types refuse."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class UtcNow(FunctionElement[datetime]):
    """The database's clock, which all workers share: leases are given and judged by it alone."""

    type = UtcTime()
    inherit_cache = True


@compiles(UtcNow, "sqlite")
def _now_in_sqlite(element: UtcNow, compiler: Any, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"  # as texts of moments are kept


@compiles(UtcNow, "postgresql")
def _now_in_postgresql(element: UtcNow, compiler: Any, **kw: Any) -> str:
    # now() would stand still while a transaction waits for a lock. Milliseconds, as in SQLite:
    # what is shown of a moment is the whole of it, and can be read on from.
    return "date_trunc('milliseconds', clock_timestamp())"


def clock(session: Session) -> datetime:
    """Time by the database's clock."""
    return session.scalars(select(UtcNow())).one()


def iso(moment: datetime) -> str:
    """ISO 8601 with milliseconds and ``Z``."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def from_row(kind: type[T], row: object, **others: Any) -> T:
    """A dataclass of the row's columns of its fields' names, moments as text, and of ``others``."""
    names = (one.name for one in fields(kind) if one.name not in others)  # type: ignore[arg-type]
    values = {name: getattr(row, name) for name in names}
    shown = {n: iso(v) if isinstance(v, datetime) else v for n, v in values.items()}
    return kind(**shown, **others)


class Base(DeclarativeBase):
    """Base of all tables; constraints are named, so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )


def _status(kind: type[StrEnum], name: str) -> Enum:
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=STATUS_LENGTH,
        values_callable=lambda members: [str(member) for member in members],
    )


def _row_id() -> Mapped[int]:
    return mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _parent(column: str) -> ForeignKey:
    return ForeignKey(column, ondelete="CASCADE")


# An id is never given again, also when the newest row was deleted.
_KEEP_IDS = {"sqlite_autoincrement": True}


class StudyRow(Base):
    """A question, and the limits that it was last asked with."""

    __tablename__ = "studies"
    __table_args__ = (
        Index(None, "asked_at", "id"),
        Index(None, "state", "asked_at", "id"),
        Index(None, "kind", "asked_at", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), unique=True)
    kind: Mapped[str] = mapped_column(String(64))  # equal for studies that may teach each other
    model_name: Mapped[str] = mapped_column(Text)
    cluster_name: Mapped[str] = mapped_column(Text)
    question: Mapped[dict[str, Any]] = mapped_column(JsonText)
    limits: Mapped[dict[str, Any]] = mapped_column(JsonText)
    state: Mapped[StudyState] = mapped_column(_status(StudyState, "state"))
    reason: Mapped[str] = mapped_column(Text)
    pool: Mapped[str] = mapped_column(String(64))
    labels: Mapped[dict[str, str]] = mapped_column(JSON)  # not text: lists are filtered by them
    revision: Mapped[int]
    seed: Mapped[int]
    probes_before: Mapped[int]
    guard_s: Mapped[float] = mapped_column(Double)  # in training replicas, since it was asked
    guard_before_s: Mapped[float] = mapped_column(Double)
    worker: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    worker_seen_at: Mapped[datetime | None] = mapped_column(UtcTime)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    asked_at: Mapped[datetime] = mapped_column(UtcTime)
    # Of the question and the limits, for lists that are sorted by them.
    method: Mapped[str] = mapped_column(String(32))  # `full`, or an adapter's
    global_batch_size: Mapped[int]
    sequence_length: Mapped[int]
    framework: Mapped[str] = mapped_column(String(32))
    fidelity: Mapped[str] = mapped_column(String(32))
    # What people note about it.
    notes: Mapped[str] = mapped_column(Text)


class ProbeRow(Base):
    """A configuration to be tried in a study."""

    __tablename__ = "probes"
    __table_args__ = (
        UniqueConstraint("study_id", "settings", "fidelity", "repetition"),
        UniqueConstraint("study_id", "number"),
        CheckConstraint("repetition >= 0", name="repetition"),
        CheckConstraint("(state = 'done') = (outcome IS NOT NULL)", name="done_has_outcome"),
        Index(None, "state", "study_id", "id"),
        _KEEP_IDS,
    )

    id: Mapped[int] = _row_id()
    study_id: Mapped[str] = mapped_column(_parent("studies.id"))
    number: Mapped[int]  # within the study, as people know it; below 0 of a dry run
    settings: Mapped[str] = mapped_column(Text)
    fidelity: Mapped[Fidelity] = mapped_column(_status(Fidelity, "fidelity"))
    repetition: Mapped[int]
    accumulation_counts: Mapped[list[int]] = mapped_column(JsonText)
    memory_limit_bytes: Mapped[int | None] = mapped_column(BigInteger)
    state: Mapped[ProbeState] = mapped_column(_status(ProbeState, "state"))
    outcome: Mapped[Outcome | None] = mapped_column(_status(Outcome, "outcome"))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcTime)


class AttemptRow(Base):
    """One execution of a probe by a worker, with its lease."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("probe_id", "number"),
        CheckConstraint("(state = 'done') = (outcome IS NOT NULL)", name="done_has_outcome"),
        # Partial on PostgreSQL too, where the migration makes it: the option's name here would
        # import that dialect, which takes 80 ms of every command.
        Index("uq_attempts_running", "probe_id", unique=True, sqlite_where=text(RUNNING)),
        Index(None, "state", "lease_until"),
        _KEEP_IDS,
    )

    id: Mapped[int] = _row_id()
    probe_id: Mapped[int] = mapped_column(_parent("probes.id"))
    number: Mapped[int]  # 1 for the probe's first attempt
    state: Mapped[AttemptState] = mapped_column(_status(AttemptState, "state"))
    outcome: Mapped[Outcome | None] = mapped_column(_status(Outcome, "outcome"))
    detail: Mapped[str] = mapped_column(Text)
    worker: Mapped[dict[str, Any]] = mapped_column(JsonText)
    devices: Mapped[list[str]] = mapped_column(JsonText)
    """Devices that it held, kept after its end; those alone that were lost, where that is known:
    the probe is not tried on them again."""
    started_at: Mapped[datetime] = mapped_column(UtcTime)
    lease_until: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class DeviceRow(Base):
    """A device while a running attempt holds it. No device is held twice."""

    __tablename__ = "devices"

    device: Mapped[str] = mapped_column(String(128), primary_key=True)
    attempt_id: Mapped[int] = mapped_column(_parent("attempts.id"), index=True)


class MeasurementRow(Base):
    """The result of a probe: the whole of it as JSON, and the figures that queries need."""

    __tablename__ = "measurements"
    __table_args__ = (Index(None, "outcome", "wall_s"),)

    probe_id: Mapped[int] = mapped_column(
        _parent("probes.id"), primary_key=True, autoincrement=False
    )
    attempt_id: Mapped[int | None] = mapped_column(_parent("attempts.id"), index=True)
    """``None`` when nobody had to try, because another study's dry run is used."""
    outcome: Mapped[Outcome] = mapped_column(_status(Outcome, "outcome"))
    allocated_bytes: Mapped[int | None] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int | None] = mapped_column(BigInteger)
    device_bytes: Mapped[int | None] = mapped_column(BigInteger)
    step_time_s: Mapped[float | None] = mapped_column(Double)
    """Median time of the optimizer steps with the largest accumulation that was run."""
    tokens_per_s: Mapped[float | None] = mapped_column(Double)
    wall_s: Mapped[float] = mapped_column(Double)
    device_s: Mapped[float] = mapped_column(Double)
    measurement: Mapped[dict[str, Any]] = mapped_column(JsonText)
    recorded_at: Mapped[datetime] = mapped_column(UtcTime)


class DryRunRow(Base):
    """A dry run that was made once, for any number of studies."""

    __tablename__ = "dry_runs"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)  # hash of all that it is of
    record: Mapped[dict[str, Any]] = mapped_column(JsonText)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class CheckRow(Base):
    """Result of training a replica, or of a probe that failed, for any number of studies."""

    __tablename__ = "checks"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)  # hash of all that it is of
    family: Mapped[str] = mapped_column(String(64), index=True)
    """Hash of the model's structure and the versions; empty for a probe's."""
    result: Mapped[CheckState] = mapped_column(_status(CheckState, "result"))
    record: Mapped[dict[str, Any]] = mapped_column(JsonText)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class CalibrationRow(Base):
    """Rates that were measured on a kind of device; the newest one counts."""

    __tablename__ = "calibrations"
    __table_args__ = (Index(None, "hardware", "torch"), _KEEP_IDS)

    id: Mapped[int] = _row_id()
    hardware: Mapped[str] = mapped_column(String(64))
    torch: Mapped[str] = mapped_column(String(64))
    nodes: Mapped[int]
    gpus_per_node: Mapped[int]
    record: Mapped[dict[str, Any]] = mapped_column(JsonText)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class EventRow(Base):
    """One thing that happened to a study."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "study_id", "id"), _KEEP_IDS)

    id: Mapped[int] = _row_id()
    study_id: Mapped[str] = mapped_column(_parent("studies.id"))
    kind: Mapped[EventKind] = mapped_column(_status(EventKind, "kind"))
    at: Mapped[datetime] = mapped_column(UtcTime)
    data: Mapped[dict[str, Any]] = mapped_column(JsonText)


class SummaryRow(Base):
    """The answer of a study in one line, as it was when it was last computed."""

    __tablename__ = "summaries"

    study_id: Mapped[str] = mapped_column(_parent("studies.id"), primary_key=True)
    newest_event: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[dict[str, Any]] = mapped_column(JsonText)
    made_at: Mapped[datetime] = mapped_column(UtcTime)
    # Of the content, for lists that are sorted by them; empty where there is no answer.
    tokens_per_s: Mapped[float | None] = mapped_column(Double)
    needed_share: Mapped[float | None] = mapped_column(Double)


class RequestRow(Base):
    """A request that was answered: sent again with the same key, it gets the same answer."""

    __tablename__ = "requests"

    owner: Mapped[str] = mapped_column(String(32), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    study_id: Mapped[str] = mapped_column(_parent("studies.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime, index=True)


class WorkerRow(Base):
    """A process that serves studies."""

    __tablename__ = "workers"
    __table_args__ = (_KEEP_IDS,)

    id: Mapped[int] = _row_id()
    identity: Mapped[dict[str, Any]] = mapped_column(JsonText)
    pools: Mapped[list[str]] = mapped_column(JsonText)
    machine: Mapped[dict[str, Any]] = mapped_column(JsonText)  # `Machine.as_dict()` of its machine
    versions: Mapped[dict[str, str]] = mapped_column(JsonText)
    started_at: Mapped[datetime] = mapped_column(UtcTime)
    seen_at: Mapped[datetime] = mapped_column(UtcTime, index=True)
    stopped_at: Mapped[datetime | None] = mapped_column(UtcTime)


class KeyRow(Base):
    """A key to the service. The key itself is nowhere kept."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))
    scope: Mapped[Scope] = mapped_column(_status(Scope, "scope"))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcTime)


class SessionRow(Base):
    """A browser that has signed in with a key. Its token itself is nowhere kept."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(_parent("keys.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    expires_at: Mapped[datetime] = mapped_column(UtcTime, index=True)
    """Time at which it ends unless it is used before; each use may put it off."""


class AuditRow(Base):
    """One thing that somebody did; never changed."""

    __tablename__ = "audit"
    __table_args__ = (_KEEP_IDS,)

    id: Mapped[int] = _row_id()
    at: Mapped[datetime] = mapped_column(UtcTime, index=True)
    actor: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))  # such as `tune.submit`
    study_id: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]] = mapped_column(JsonText)
