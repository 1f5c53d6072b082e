"""Lists of studies: pages of all of them, and those that a worker may take.

Every function works inside a transaction of the caller's, and reads no probe but to count.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import func, or_, select, tuple_
from sqlalchemy.orm import Session

from tuner.measurement import Outcome
from tuner.store.clock import iso
from tuner.store.records import OpenStudy, StudySummary
from tuner.store.tables import ProbeRow, StudyRow
from tuner.study import OPEN, StudyState

Position = tuple[str, str]
"""A study's place in the list: when it was asked last, in ISO 8601, and its id."""


def read_page(
    session: Session,
    *,
    before: Position | None = None,
    limit: int,
    state: StudyState | None = None,
    query: str = "",
    model: str = "",
) -> list[StudySummary]:
    """The studies asked last, newest first, in two queries.

    A page is read along an index, however far back it is. Only words that few studies have make
    it look at many rows.

    Args:
        session: to read in.
        before: the place after which to go on, that of the last study of the page before.
        limit: most studies.
        state: only studies in this state.
        query: only studies with this in their id, or in the name of their model or cluster.
        model: only studies of the model of exactly this name.
    """
    place = (StudyRow.asked_at, StudyRow.id)
    wanted = [StudyRow.state == state] if state else []
    if before is not None:
        asked_at, study_id = before
        wanted.append(tuple_(*place) < (datetime.fromisoformat(asked_at), study_id))
    if query:
        names = (StudyRow.id, StudyRow.model_name, StudyRow.cluster_name)
        wanted.append(or_(*(name.icontains(query, autoescape=True) for name in names)))
    if model:
        wanted.append(StudyRow.model_name == model)
    newest = select(StudyRow).where(*wanted).order_by(*(column.desc() for column in place))
    rows = session.scalars(newest.limit(limit)).all()
    counts = _outcomes(session, [row.id for row in rows])
    return [_summary(row, counts.get(row.id, {})) for row in rows]


def read_open(session: Session, pools: Collection[str]) -> list[OpenStudy]:
    """Studies that are not at their end, of no pool or one of ``pools``, asked first first."""
    columns = (StudyRow.id, StudyRow.state, StudyRow.pool, StudyRow.revision)
    mine = (StudyRow.state.in_(OPEN), StudyRow.pool.in_({"", *pools}))
    rows = session.execute(
        select(*columns).where(*mine).order_by(StudyRow.asked_at, StudyRow.id)
    ).all()
    return [
        OpenStudy(id=row.id, state=row.state, pool=row.pool, revision=row.revision) for row in rows
    ]


def count_open(session: Session) -> int:
    """How many studies are not at their end."""
    return session.scalar(select(func.count()).where(StudyRow.state.in_(OPEN))) or 0


def _summary(row: StudyRow, probes: dict[Outcome, int]) -> StudySummary:
    return StudySummary(
        id=row.id,
        model_name=row.model_name,
        cluster_name=row.cluster_name,
        state=row.state,
        reason=row.reason,
        probes=probes,
        pool=row.pool,
        revision=row.revision,
        created_at=iso(row.created_at) or "",
        asked_at=iso(row.asked_at) or "",
    )


def _outcomes(session: Session, study_ids: Sequence[str]) -> dict[str, dict[Outcome, int]]:
    counted = session.execute(
        select(ProbeRow.study_id, ProbeRow.outcome, func.count())
        .where(ProbeRow.study_id.in_(study_ids), ProbeRow.outcome.is_not(None))
        .group_by(ProbeRow.study_id, ProbeRow.outcome)
        .order_by(ProbeRow.outcome)
    )
    counts: dict[str, dict[Outcome, int]] = {}
    for study_id, outcome, count in counted:
        assert outcome is not None
        counts.setdefault(study_id, {})[outcome] = count
    return counts
