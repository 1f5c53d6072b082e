"""Probes that ended early, because they are slower than the fastest known could be."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BEFORE = (
    "'ok', 'oom', 'host_oom', 'timeout', 'communication_error', 'knob_inactive', 'wrong_result',"
    " 'non_finite', 'invalid', 'crashed', 'device_lost', 'worker_lost', 'cancelled'"
)
NOW = BEFORE.replace("'timeout', ", "'timeout', 'stopped_early', ")

OF_STOPPED = "(SELECT id FROM probes WHERE outcome = 'stopped_early')"

KEEPS_IDS = ("probes", "attempts")
"""Tables that never give an id twice."""


def upgrade() -> None:
    """Makes room for the outcome."""
    _allow_outcomes(NOW)


def downgrade() -> None:
    """Drops such probes, with what they found."""
    op.execute(f"DELETE FROM measurements WHERE probe_id IN {OF_STOPPED}")  # noqa: S608
    op.execute(f"DELETE FROM attempts WHERE probe_id IN {OF_STOPPED}")  # noqa: S608
    op.execute("DELETE FROM probes WHERE outcome = 'stopped_early'")
    _allow_outcomes(BEFORE)


def _allow_outcomes(values: str) -> None:
    for table in ("probes", "attempts", "measurements"):
        keeps = table in KEEPS_IDS
        newest = _newest_id(table) if keeps else None
        name = op.f(f"ck_{table}_outcome")
        kept = {"sqlite_autoincrement": True} if keeps else {}
        with op.batch_alter_table(table, table_kwargs=kept) as batch:
            batch.drop_constraint(name, type_="check")
            batch.create_check_constraint(name, f"outcome IN ({values})")
        _keep_newest_id(table, newest)


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
