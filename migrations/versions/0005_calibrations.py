"""Rates measured on devices."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes room for calibrations."""
    op.create_table(
        "calibrations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("hardware", sa.String(64), nullable=False),
        sa.Column("torch", sa.String(64), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calibrations")),
        sqlite_autoincrement=True,
    )
    index = op.f("ix_calibrations_hardware_torch")
    op.create_index(index, "calibrations", ["hardware", "torch"])


def downgrade() -> None:
    """Drops calibrations."""
    op.drop_table("calibrations")
