"""What a service keeps: devices held, workers, pools, keys, requests answered, who did what."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NEW = ("audit", "keys", "workers", "requests", "devices")


def upgrade() -> None:
    """Makes the tables."""
    op.add_column("studies", sa.Column("pool", sa.String(64), nullable=False, server_default=""))
    op.drop_index(op.f("ix_studies_asked_at"), "studies")
    op.create_index(op.f("ix_studies_asked_at_id"), "studies", ["asked_at", "id"])
    op.create_index(op.f("ix_studies_state_pool"), "studies", ["state", "pool"])
    _make_devices()
    _make_requests()
    _make_workers()
    _make_keys()
    _make_audit()


def downgrade() -> None:
    """Drops them."""
    for table in NEW:
        op.drop_table(table)
    op.drop_index(op.f("ix_studies_state_pool"), "studies")
    op.drop_index(op.f("ix_studies_asked_at_id"), "studies")
    op.create_index(op.f("ix_studies_asked_at"), "studies", ["asked_at"])
    op.drop_column("studies", "pool")


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
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("pools", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
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
