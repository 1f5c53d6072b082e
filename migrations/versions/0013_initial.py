"""All tables. Lower numbers are of schemas from before the first release, which are refused."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = None
branch_labels = None
depends_on = None

OUTCOMES = (
    "'ok', 'oom', 'host_oom', 'timeout', 'stopped_early', 'communication_error', 'knob_inactive',"
    " 'wrong_result', 'non_finite', 'invalid', 'crashed', 'device_lost', 'worker_lost', 'cancelled'"
)
DONE_HAS_OUTCOME = "(state = 'done') = (outcome IS NOT NULL)"
TABLES = (
    "studies", "probes", "attempts", "devices", "measurements", "events", "summaries", "requests",
    "dry_runs", "checks", "calibrations", "workers", "keys", "sessions", "audit",
)  # fmt: skip

Text, Time = sa.Text(), sa.DateTime(timezone=True)
Int, Big, Real = sa.Integer(), sa.BigInteger(), sa.Double()
Short, Long = sa.String(32), sa.String(64)
Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

Item = sa.Column | sa.Constraint


def upgrade() -> None:
    """Makes all tables."""
    _make_studies_and_probes()
    _make_attempts()
    _make_shared_results()
    _make_service()


def downgrade() -> None:
    """Drops all tables."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _table(name: str, *items: Item, key: tuple[str, ...] = ("id",), keep_ids: bool = False) -> None:
    """Makes a table; with ``keep_ids``, SQLite too never gives an id again."""
    primary = sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{name}"))
    op.create_table(name, *items, primary, **({"sqlite_autoincrement": True} if keep_ids else {}))


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _new(**kinds: sa.types.TypeEngine) -> list[sa.Column]:
    """Columns that always have a value."""
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def _empty(**kinds: sa.types.TypeEngine) -> list[sa.Column]:
    """Columns that may be empty."""
    return [sa.Column(name, kind) for name, kind in kinds.items()]


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def _one_of(table: str, column: str, values: str) -> sa.CheckConstraint:
    return _check(table, column, f"{column} IN ({values})")


def _parent(table: str, column: str, parent: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{parent}.id"], name=name, ondelete="CASCADE")


def _make_studies_and_probes() -> None:
    _table(
        "studies",
        *_new(id=Short, identity=Long, kind=Long, model_name=Text, cluster_name=Text),
        *_new(question=Text, limits=Text, state=Short, reason=Text, pool=Long, revision=Int),
        *_new(seed=Int, probes_before=Int, guard_s=Real, guard_before_s=Real, labels=sa.JSON()),
        *_empty(worker=Text, worker_seen_at=Time),
        *_new(created_at=Time, asked_at=Time),
        *_new(method=Short, global_batch_size=Int, sequence_length=Int, framework=Short),
        *_new(fidelity=Short, notes=Text),
        _unique("studies", "identity"),
        _one_of("studies", "state", "'queued', 'running', 'done', 'failed', 'cancelled'"),
    )
    _index("studies", "asked_at", "id")
    _index("studies", "state", "asked_at", "id")
    _index("studies", "kind", "asked_at", "id")
    _table(
        "probes",
        *_new(id=Id, study_id=Short, number=Int, settings=Text, fidelity=Short, repetition=Int),
        *_new(accumulation_counts=Text),
        *_empty(memory_limit_bytes=Big),
        *_new(state=Short),
        *_empty(outcome=Short),
        *_new(created_at=Time),
        *_empty(finished_at=Time),
        _parent("probes", "study_id", "studies"),
        _unique("probes", "study_id", "settings", "fidelity", "repetition"),
        _unique("probes", "study_id", "number"),
        _check("probes", "repetition", "repetition >= 0"),
        _check("probes", "done_has_outcome", DONE_HAS_OUTCOME),
        _one_of("probes", "fidelity", "'measured', 'emulated', 'rehearsed', 'predicted'"),
        _one_of("probes", "state", "'queued', 'running', 'done'"),
        _one_of("probes", "outcome", OUTCOMES),
        keep_ids=True,
    )
    _index("probes", "state", "study_id", "id")
    _table(
        "events",
        *_new(id=Id, study_id=Short, kind=Short, at=Time, data=Text),
        _parent("events", "study_id", "studies"),
        _one_of("events", "kind", "'asked', 'study', 'probe', 'labels'"),
        keep_ids=True,
    )
    _index("events", "study_id", "id")
    _table(
        "summaries",
        *_new(study_id=Short, newest_event=Big, content=Text, made_at=Time),
        *_empty(tokens_per_s=Real, needed_share=Real),
        _parent("summaries", "study_id", "studies"),
        key=("study_id",),
    )


def _make_attempts() -> None:
    _table(
        "attempts",
        *_new(id=Id, probe_id=Id, number=Int, state=Short),
        *_empty(outcome=Short),
        *_new(detail=Text, worker=Text, devices=Text, started_at=Time, lease_until=Time),
        *_empty(ended_at=Time),
        _parent("attempts", "probe_id", "probes"),
        _unique("attempts", "probe_id", "number"),
        _check("attempts", "done_has_outcome", DONE_HAS_OUTCOME),
        _one_of("attempts", "state", "'running', 'done', 'lost', 'given_back'"),
        _one_of("attempts", "outcome", OUTCOMES),
        keep_ids=True,
    )
    # One owner: a probe has one running attempt at most.
    running = sa.text("state = 'running'")
    op.create_index(
        "uq_attempts_running",
        "attempts",
        ["probe_id"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )
    _index("attempts", "state", "lease_until")
    _table(
        "devices",
        *_new(device=sa.String(128), attempt_id=Id),
        _parent("devices", "attempt_id", "attempts"),
        key=("device",),
    )
    _index("devices", "attempt_id")
    _table(
        "measurements",
        sa.Column("probe_id", Id, autoincrement=False, nullable=False),
        *_empty(attempt_id=Id),
        *_new(outcome=Short),
        *_empty(allocated_bytes=Big, reserved_bytes=Big, device_bytes=Big),
        *_empty(step_time_s=Real, tokens_per_s=Real),
        *_new(wall_s=Real, device_s=Real, measurement=Text, recorded_at=Time),
        _parent("measurements", "probe_id", "probes"),
        _parent("measurements", "attempt_id", "attempts"),
        _one_of("measurements", "outcome", OUTCOMES),
        key=("probe_id",),
    )
    _index("measurements", "attempt_id")
    _index("measurements", "outcome", "wall_s")


def _make_shared_results() -> None:
    """Makes the tables of results that all studies use."""
    _table("dry_runs", *_new(key=Long, record=Text, created_at=Time), key=("key",))
    _table(
        "checks",
        *_new(key=Long, family=Long, result=Short, record=Text, created_at=Time),
        _one_of("checks", "result", "'passed', 'failed', 'not_checked'"),
        key=("key",),
    )
    _index("checks", "family")
    _table(
        "calibrations",
        *_new(id=Id, hardware=Long, torch=Long, nodes=Int, gpus_per_node=Int, record=Text),
        *_new(created_at=Time),
        keep_ids=True,
    )
    _index("calibrations", "hardware", "torch")


def _make_service() -> None:
    """Makes the tables of workers, and of those who use the service."""
    _table(
        "workers",
        *_new(id=Id, identity=Text, pools=Text, machine=Text, versions=Text),
        *_new(started_at=Time, seen_at=Time),
        *_empty(stopped_at=Time),
        keep_ids=True,
    )
    _index("workers", "seen_at")
    _table(
        "keys",
        *_new(id=Short, name=Long, hash=Long, scope=Short, created_at=Time),
        *_empty(last_used_at=Time, revoked_at=Time),
        _one_of("keys", "scope", "'read', 'submit', 'admin'"),
    )
    _table(
        "sessions",
        *_new(token_hash=Long, key_id=Short, created_at=Time, expires_at=Time),
        _parent("sessions", "key_id", "keys"),
        key=("token_hash",),
    )
    _index("sessions", "key_id")
    _index("sessions", "expires_at")
    _table(
        "requests",
        *_new(owner=Short, idempotency_key=sa.String(255), body_hash=Long, study_id=Short),
        *_new(created_at=Time),
        _parent("requests", "study_id", "studies"),
        key=("owner", "idempotency_key"),
    )
    _index("requests", "study_id")
    _index("requests", "created_at")
    _table(
        "audit",
        *_new(id=Id, at=Time, actor=Long, action=Long, study_id=Short, data=Text),
        keep_ids=True,
    )
    _index("audit", "at")
