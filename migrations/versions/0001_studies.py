"""Studies, probes, attempts, measurements, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

OUTCOMES = (
    "'ok', 'oom', 'host_oom', 'timeout', 'communication_error', 'knob_inactive', 'wrong_result',"
    " 'non_finite', 'invalid', 'crashed', 'device_lost', 'worker_lost', 'cancelled'"
)
DONE_HAS_OUTCOME = "(state = 'done') = (outcome IS NOT NULL)"

Time = sa.DateTime(timezone=True)
Status = sa.String(32)
RowId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes all tables."""
    _studies()
    _probes()
    _attempts()
    _measurements()
    _events()


def downgrade() -> None:
    """Drops all tables."""
    for table in ("events", "measurements", "attempts", "probes", "studies"):
        op.drop_table(table)


def _one_of(table: str, column: str, values: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({values})", name=op.f(f"ck_{table}_{column}"))


def _parent(table: str, column: str, parent: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{parent}.id"], name=name, ondelete="CASCADE")


def _studies() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("cluster_name", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("state", Status, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("probes_before", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("worker_seen_at", Time),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("asked_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint("identity", name=op.f("uq_studies_identity")),
        _one_of("studies", "state", "'queued', 'running', 'done', 'failed', 'cancelled'"),
    )
    op.create_index(op.f("ix_studies_asked_at"), "studies", ["asked_at"])


def _probes() -> None:
    key = ("study_id", "settings", "fidelity", "repetition")
    op.create_table(
        "probes",
        sa.Column("id", RowId, nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("fidelity", Status, nullable=False),
        sa.Column("repetition", sa.Integer(), nullable=False),
        sa.Column("accumulation_counts", sa.Text(), nullable=False),
        sa.Column("memory_limit_bytes", sa.BigInteger()),
        sa.Column("state", Status, nullable=False),
        sa.Column("outcome", Status),
        sa.Column("created_at", Time, nullable=False),
        sa.Column("finished_at", Time),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probes")),
        sa.UniqueConstraint(*key, name=op.f(f"uq_probes_{'_'.join(key)}")),
        sa.CheckConstraint("repetition >= 0", name=op.f("ck_probes_repetition")),
        sa.CheckConstraint(DONE_HAS_OUTCOME, name=op.f("ck_probes_done_has_outcome")),
        _parent("probes", "study_id", "studies"),
        _one_of("probes", "fidelity", "'measured'"),
        _one_of("probes", "state", "'queued', 'running', 'done'"),
        _one_of("probes", "outcome", OUTCOMES),
        sqlite_autoincrement=True,
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", RowId, nullable=False),
        sa.Column("probe_id", RowId, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", Status, nullable=False),
        sa.Column("outcome", Status),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("started_at", Time, nullable=False),
        sa.Column("lease_until", Time, nullable=False),
        sa.Column("ended_at", Time),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("probe_id", "number", name=op.f("uq_attempts_probe_id_number")),
        sa.CheckConstraint(DONE_HAS_OUTCOME, name=op.f("ck_attempts_done_has_outcome")),
        _parent("attempts", "probe_id", "probes"),
        _one_of("attempts", "state", "'running', 'done', 'lost', 'given_back'"),
        _one_of("attempts", "outcome", OUTCOMES),
        sqlite_autoincrement=True,
    )
    running = sa.text("state = 'running'")
    op.create_index(
        "uq_attempts_running",
        "attempts",
        ["probe_id"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )


def _measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("probe_id", RowId, autoincrement=False, nullable=False),
        sa.Column("attempt_id", RowId, nullable=False),
        sa.Column("outcome", Status, nullable=False),
        sa.Column("allocated_bytes", sa.BigInteger()),
        sa.Column("reserved_bytes", sa.BigInteger()),
        sa.Column("device_bytes", sa.BigInteger()),
        sa.Column("step_time_s", sa.Double()),
        sa.Column("tokens_per_s", sa.Double()),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("measurement", sa.Text(), nullable=False),
        sa.Column("recorded_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("probe_id", name=op.f("pk_measurements")),
        _parent("measurements", "probe_id", "probes"),
        _parent("measurements", "attempt_id", "attempts"),
        _one_of("measurements", "outcome", OUTCOMES),
    )
    op.create_index(op.f("ix_measurements_attempt_id"), "measurements", ["attempt_id"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", RowId, nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("kind", Status, nullable=False),
        sa.Column("at", Time, nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        _parent("events", "study_id", "studies"),
        _one_of("events", "kind", "'asked', 'study', 'probe'"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_study_id_id"), "events", ["study_id", "id"])
