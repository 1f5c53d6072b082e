"""Verdicts of the guard, kept for all studies."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes room for verdicts."""
    op.create_table(
        "guards",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        sa.Column("ruling", sa.String(32), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "ruling IN ('passed', 'failed', 'not_checked')", name=op.f("ck_guards_ruling")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_guards")),
    )
    op.create_index(op.f("ix_guards_family"), "guards", ["family"])


def downgrade() -> None:
    """Drops verdicts; they can be found again."""
    op.drop_table("guards")
