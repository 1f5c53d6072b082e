"""Whose open studies are how many."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.store.audit import Action
from tuner.store.tables import AuditRow, StudyRow
from tuner.study import OPEN


def count_open_of(session: Session, actor: str) -> int:
    """Studies that are not at their end and that an actor asked, as the audit says.

    Looked for among what was noted since the oldest of the open ones was asked; what was pruned
    from the audit counts no more.
    """
    is_open = StudyRow.state.in_(OPEN)
    since = select(func.min(StudyRow.asked_at)).where(is_open).scalar_subquery()
    asked = select(func.count(StudyRow.id.distinct())).join(
        AuditRow, AuditRow.study_id == StudyRow.id
    )
    theirs = (AuditRow.actor == actor, AuditRow.action == str(Action.SUBMIT))
    return session.scalar(asked.where(is_open, AuditRow.at >= since, *theirs)) or 0
