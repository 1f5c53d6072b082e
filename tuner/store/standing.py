"""Where studies stand, without their probes: cheap enough to be asked several times a second."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from tuner.store.clock import iso
from tuner.store.tables import EventRow, StudyRow
from tuner.store.transactions import Transactions
from tuner.study import StudyState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A study's row, and its newest event: when neither has changed, nothing of it has."""

    id: str
    """The study's id."""
    identity: str
    """Its question's."""
    state: StudyState
    """Where it stands."""
    reason: str
    """Why it stands there."""
    revision: int
    """Counts what the planner must know of."""
    terms: Mapping[str, Any]
    """On what terms it was asked last, as plain values."""
    asked_at: str
    """When it was asked last, UTC in ISO 8601."""
    newest_event: int
    """Id of the last thing that happened to it."""


class Standings:
    """Where the studies of a database stand. One short transaction each.

    Args:
        transactions: of an open store.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def of(self, study_ids: Collection[str]) -> dict[str, Standing]:
        """Where studies stand, by id, in one query; those that do not exist are left out."""
        if not study_ids:
            return {}
        with self._transactions.read() as session:
            return read_standings(session, study_ids)

    def one(self, study_id: str) -> Standing | None:
        """Where one study stands; ``None`` when there is none of this id."""
        return self.of([study_id]).get(study_id)


def read_standings(session: Session, study_ids: Collection[str]) -> dict[str, Standing]:
    """Where studies stand, by id, in one query; those that do not exist are left out."""
    found = session.execute(_wanted(), {"study_ids": sorted(study_ids)}).all()
    return {
        row.id: Standing(
            id=row.id,
            identity=row.identity,
            state=row.state,
            reason=row.reason,
            revision=row.revision,
            terms=row.terms,
            asked_at=iso(row.asked_at) or "",
            newest_event=row.newest_event or 0,
        )
        for row in found
    }


@cache
def _wanted() -> Select[Any]:
    """The query; to put it together takes longer than to run it."""
    newest = (
        select(func.max(EventRow.id))
        .where(EventRow.study_id == StudyRow.id)
        .correlate(StudyRow)
        .scalar_subquery()
        .label("newest_event")
    )
    columns = (
        StudyRow.id,
        StudyRow.identity,
        StudyRow.state,
        StudyRow.reason,
        StudyRow.revision,
        StudyRow.terms,
        StudyRow.asked_at,
        newest,
    )
    return select(*columns).where(StudyRow.id.in_(bindparam("study_ids", expanding=True)))
