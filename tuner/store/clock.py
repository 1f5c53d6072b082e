"""The database's clock, and moments as text."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.store.tables import UtcNow


def clock(session: Session) -> datetime:
    """The database's clock now."""
    return session.scalars(select(UtcNow())).one()


def iso(moment: datetime | None) -> str | None:
    """ISO 8601 with milliseconds and ``Z``."""
    if moment is None:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
