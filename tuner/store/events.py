"""Events: what happened to studies, written in the transactions in which it happens."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Insert, insert, select
from sqlalchemy.orm import Session

from tuner.store.clock import iso
from tuner.store.records import Event, EventKind
from tuner.store.tables import Base, EventRow


def add_event(
    session: Session, study_id: str, kind: EventKind, now: datetime, data: Mapping[str, Any]
) -> None:
    """Tells what happened. The caller holds the study's row lock, or events of one study could be
    committed in another order than that of their ids, and a reader would miss some."""
    values = {"study_id": study_id, "kind": kind, "at": now, "data": dict(data)}
    session.connection().execute(_new_event(), values)


@cache
def _new_event() -> Insert:
    return insert(Base.metadata.tables[EventRow.__tablename__])


def read_events(
    session: Session, study_id: str, after: int = 0, limit: int | None = None
) -> list[Event]:
    """What happened to a study since the event ``after``, oldest first, ``limit`` at most."""
    newer = (EventRow.study_id == study_id, EventRow.id > after)
    columns = (EventRow.id, EventRow.kind, EventRow.at, EventRow.data)
    rows = session.execute(select(*columns).where(*newer).order_by(EventRow.id).limit(limit))
    return [
        Event(id=row.id, study_id=study_id, kind=row.kind, at=iso(row.at) or "", data=row.data)
        for row in rows
    ]
