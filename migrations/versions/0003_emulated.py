"""Emulated probes."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

OF_EMULATED = "(SELECT id FROM probes WHERE fidelity = 'emulated')"


def upgrade() -> None:
    """Makes room for emulated probes."""
    _allow_fidelities("'measured', 'emulated', 'predicted'")


def downgrade() -> None:
    """Drops emulated probes, with what they found."""
    op.execute(f"DELETE FROM measurements WHERE probe_id IN {OF_EMULATED}")  # noqa: S608
    op.execute(f"DELETE FROM attempts WHERE probe_id IN {OF_EMULATED}")  # noqa: S608
    op.execute("DELETE FROM probes WHERE fidelity = 'emulated'")
    _allow_fidelities("'measured', 'predicted'")


def _allow_fidelities(values: str) -> None:
    newest = _newest_id()
    with op.batch_alter_table("probes", table_kwargs={"sqlite_autoincrement": True}) as batch:
        batch.drop_constraint(op.f("ck_probes_fidelity"), type_="check")
        batch.create_check_constraint(op.f("ck_probes_fidelity"), f"fidelity IN ({values})")
    _keep_newest_id(newest)


def _newest_id() -> int | None:
    """The newest id that SQLite ever gave, which it forgets when it fills a table anew."""
    if op.get_bind().dialect.name != "sqlite":
        return None
    found = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'probes'")
    return op.get_bind().execute(found).scalar()


def _keep_newest_id(newest: int | None) -> None:
    if newest is None:
        return
    op.get_bind().execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'probes'"))
    op.get_bind().execute(
        sa.text("INSERT INTO sqlite_sequence VALUES ('probes', :seq)"), {"seq": newest}
    )
