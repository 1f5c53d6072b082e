"""Events: what happened to studies, written in the transactions in which it happens."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Insert, Row, Select, insert, select
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
    newer = _of(study_id).where(EventRow.id > after)
    rows = session.execute(newer.order_by(EventRow.id).limit(limit))
    return [_event_of(study_id, row) for row in rows]


def read_latest_events(session: Session, study_id: str, most: int) -> list[Event]:
    """The ``most`` newest things that happened to a study, oldest first."""
    rows = session.execute(_of(study_id).order_by(EventRow.id.desc()).limit(most))
    return [_event_of(study_id, row) for row in rows][::-1]


def _of(study_id: str) -> Select[*tuple[Any, ...]]:
    columns = (EventRow.id, EventRow.kind, EventRow.at, EventRow.data)
    return select(*columns).where(EventRow.study_id == study_id)


def _event_of(study_id: str, row: Row[*tuple[Any, ...]]) -> Event:
    return Event(id=row.id, study_id=study_id, kind=row.kind, at=iso(row.at) or "", data=row.data)
