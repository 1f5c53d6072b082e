"""What a service keeps: devices held, workers, pools, keys, requests answered, who did what."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

GUARD_SECONDS = ("guard_s", "guard_before_s")
NEW = ("audit", "keys", "workers", "requests", "devices")


def upgrade() -> None:
    """Makes the tables."""
    op.add_column("studies", sa.Column("pool", sa.String(64), nullable=False, server_default=""))
    _add_kinds()
    for name in GUARD_SECONDS:
        op.add_column("studies", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    op.drop_index(op.f("ix_studies_asked_at"), "studies")
    op.create_index(op.f("ix_studies_asked_at_id"), "studies", ["asked_at", "id"])
    op.create_index(op.f("ix_studies_state_asked_at_id"), "studies", ["state", "asked_at", "id"])
    op.create_index(op.f("ix_probes_state_study_id_id"), "probes", ["state", "study_id", "id"])
    op.add_column("attempts", sa.Column("devices", sa.Text(), nullable=False, server_default="[]"))
    op.create_index(op.f("ix_attempts_state_lease_until"), "attempts", ["state", "lease_until"])
    op.create_index(op.f("ix_measurements_outcome_wall_s"), "measurements", ["outcome", "wall_s"])
    _round_moments()
    _make_devices()
    _make_requests()
    _make_workers()
    _make_keys()
    _make_audit()


def downgrade() -> None:
    """Drops them."""
    for table in NEW:
        op.drop_table(table)
    op.drop_index(op.f("ix_measurements_outcome_wall_s"), "measurements")
    op.drop_index(op.f("ix_attempts_state_lease_until"), "attempts")
    op.drop_column("attempts", "devices")
    op.drop_index(op.f("ix_probes_state_study_id_id"), "probes")
    op.drop_index(op.f("ix_studies_state_asked_at_id"), "studies")
    op.drop_index(op.f("ix_studies_asked_at_id"), "studies")
    op.create_index(op.f("ix_studies_asked_at"), "studies", ["asked_at"])
    op.drop_index(op.f("ix_studies_kind_asked_at_id"), "studies")
    for name in ("pool", "kind", *GUARD_SECONDS):
        op.drop_column("studies", name)


def _add_kinds() -> None:
    """Of each study a hash of what similar ones have in common, as ``Question.kind`` makes it."""
    op.add_column("studies", sa.Column("kind", sa.String(64), nullable=False, server_default=""))
    op.create_index(op.f("ix_studies_kind_asked_at_id"), "studies", ["kind", "asked_at", "id"])
    connection = op.get_bind()
    write = sa.text("UPDATE studies SET kind = :kind WHERE id = :id")
    for study_id, question in connection.execute(sa.text("SELECT id, question FROM studies")).all():
        connection.execute(write, {"id": study_id, "kind": _kind(json.loads(question))})


def _kind(question: Mapping[str, Any]) -> str:
    """Empty, as of no other study, where a question is of another form."""
    try:
        cluster = {name: v for name, v in question["cluster"].items() if name != "nodes"}
        framework, precision = question["framework"], question["workload"]["precision"]
    except (KeyError, TypeError, AttributeError):
        return ""
    values = {"framework": framework, "cluster": cluster, "precision": precision}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _round_moments() -> None:
    """Studies are paged through by when they were asked, which is shown in milliseconds."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("UPDATE studies SET asked_at = date_trunc('milliseconds', asked_at)")


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, nullable=False)


def _parent(table: str, column: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    whose = "attempts.id" if column == "attempt_id" else "studies.id"
    return sa.ForeignKeyConstraint([column], [whose], name=name, ondelete="CASCADE")


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def _make_devices() -> None:
    op.create_table(
        "devices",
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("attempt_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        _parent("devices", "attempt_id"),
        _key("devices", "device"),
    )
    op.create_index(op.f("ix_devices_attempt_id"), "devices", ["attempt_id"])


def _make_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        _parent("requests", "study_id"),
        _key("requests", "owner", "idempotency_key"),
    )
    op.create_index(op.f("ix_requests_study_id"), "requests", ["study_id"])
    op.create_index(op.f("ix_requests_created_at"), "requests", ["created_at"])


def _make_workers() -> None:
    op.create_table(
        "workers",
        _id(),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("pools", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        _key("workers", "id"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_workers_seen_at"), "workers", ["seen_at"])


def _make_keys() -> None:
    scopes = "scope IN ('read', 'submit', 'admin')"
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(scopes, name=op.f("ck_keys_scope")),
        _key("keys", "id"),
    )


def _make_audit() -> None:
    op.create_table(
        "audit",
        _id(),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False, server_default=""),
        sa.Column("data", sa.Text(), nullable=False),
        _key("audit", "id"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
