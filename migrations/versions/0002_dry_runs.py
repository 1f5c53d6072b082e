"""Dry runs: a table of them, predicted probes, and measurements that no attempt was needed for."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Time = sa.DateTime(timezone=True)
RowId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes room for dry runs."""
    op.create_table(
        "dry_runs",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("created_at", Time, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_dry_runs")),
    )
    _allow_fidelities("'measured', 'predicted'")
    _require_attempts(required=False)


def downgrade() -> None:
    """Drops dry runs, and the predicted probes that stand on them."""
    op.execute(
        "DELETE FROM measurements WHERE probe_id IN"
        " (SELECT id FROM probes WHERE fidelity = 'predicted')"
    )
    op.execute(
        "DELETE FROM attempts WHERE probe_id IN"
        " (SELECT id FROM probes WHERE fidelity = 'predicted')"
    )
    op.execute("DELETE FROM probes WHERE fidelity = 'predicted'")
    _require_attempts(required=True)
    _allow_fidelities("'measured'")
    op.drop_table("dry_runs")


def _allow_fidelities(values: str) -> None:
    newest = _newest_id("probes")
    with op.batch_alter_table("probes", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.drop_constraint(op.f("ck_probes_fidelity"), type_="check")
        batch.create_check_constraint(op.f("ck_probes_fidelity"), f"fidelity IN ({values})")
    _keep_newest_id("probes", newest)


def _require_attempts(*, required: bool) -> None:
    with op.batch_alter_table("measurements") as batch:
        batch.alter_column("attempt_id", existing_type=RowId, nullable=not required)


def _newest_id(table: str) -> int | None:
    """The newest id that SQLite ever gave, which it forgets when it fills a table anew."""
    if op.get_bind().dialect.name != "sqlite":
        return None
    found = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
    return op.get_bind().execute(found, {"name": table}).scalar()


def _keep_newest_id(table: str, newest: int | None) -> None:
    if newest is None:
        return
    values = {"name": table, "seq": newest}
    op.get_bind().execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), values)
    op.get_bind().execute(sa.text("INSERT INTO sqlite_sequence VALUES (:name, :seq)"), values)
