"""Claims that are sent again, because their answer was lost, find the first one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INDEX = "ix_attempts_claim_key"


def upgrade() -> None:
    """Adds the key, which attempts of before have not."""
    op.add_column("attempts", sa.Column("claim_key", sa.String(32), nullable=True))
    op.create_index(op.f(INDEX), "attempts", ["claim_key"], unique=True)


def downgrade() -> None:
    """Drops it."""
    op.drop_index(op.f(INDEX), "attempts")
    op.drop_column("attempts", "claim_key")
