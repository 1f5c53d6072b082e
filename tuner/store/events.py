"""Events: what happened to studies, written in the transactions in which it happens."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from tuner.store.tables import Base, EventKind, EventRow, iso

# Of the table instead of the class, whose inserts read each new id back.
_NEW_EVENT = insert(Base.metadata.tables[EventRow.__tablename__])


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a study. Ids grow in the order of commits of one study."""

    id: int  # its row, and the cursor to read on from
    study_id: str
    kind: EventKind
    at: str
    data: Mapping[str, Any]  # plain JSON values; see :class:`EventKind`


def add_event(
    session: Session, study_id: str, kind: EventKind, now: datetime, data: Mapping[str, Any]
) -> None:
    """Adds an event of a study whose row the caller has locked."""
    # Without the lock events of one study could be committed in another order than that of their
    # ids, and a reader would miss some.
    row = {"study_id": study_id, "kind": kind, "at": now, "data": dict(data)}
    session.connection().execute(_NEW_EVENT, row)


def read_events(
    session: Session, study_id: str, after: int = 0, limit: int | None = None, *, last: bool = False
) -> list[Event]:
    """The events of a study since the event ``after``, oldest first."""
    columns = (EventRow.id, EventRow.kind, EventRow.at, EventRow.data)
    newer = select(*columns).where(EventRow.study_id == study_id, EventRow.id > after)
    order = EventRow.id.desc() if last else EventRow.id
    found = [
        Event(id=row.id, study_id=study_id, kind=row.kind, at=iso(row.at), data=row.data)
        for row in session.execute(newer.order_by(order).limit(limit))
    ]
    return found[::-1] if last else found
