"""What asking a question does to its row: a new study, or the same one on new terms; and how
studies are named.

Every function works inside a transaction of the caller's, a writing one for asking.
"""

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import OtherTermsError, StoreError, UnknownNameError, UsageError
from tuner.store import queue
from tuner.store.clock import clock
from tuner.store.events import add_event
from tuner.store.records import EventKind
from tuner.store.tables import ProbeRow, StudyRow
from tuner.study import OPEN, ProbeState, Question, StudyState, Terms

ID_PREFIX = "st-"
ID_DIGITS = 12


def study_id(question: Question) -> str:
    """The id of a question's study: ``st-`` and the first 12 digits of its identity."""
    return ID_PREFIX + question.identity[:ID_DIGITS]


def ask(session: Session, question: Question, terms: Terms, *, replace: bool = True) -> StudyRow:
    """Ask a question: a new study, or the same question's on the new terms; its row, locked.

    See :meth:`tuner.store.Store.ask`. A caller may write more in the same transaction.

    Args:
        session: a writing transaction.
        question: what is asked.
        terms: on what terms.
        replace: whether an open study is put on these, if it is on other ones.

    Raises:
        StoreError: another question has its id.
        OtherTermsError: it is open on other terms, which are not to be replaced.
    """
    study, new = asked_study(session, question, terms)
    if not new and not replace and study.state in OPEN and (apart := terms.apart(study.terms)):
        raise OtherTermsError(study.id, apart)
    now = clock(session)
    if not new:
        renew(session, study, question, terms, now)
    study.revision += 1
    data = {"again": not new, "terms": terms.as_dict()}
    add_event(session, study.id, EventKind.ASKED, now, data)
    if study.state not in OPEN:
        queue.move_study(session, study, StudyState.QUEUED, "", now)
    session.flush()
    return study


def asked_study(session: Session, question: Question, terms: Terms) -> tuple[StudyRow, bool]:
    """The question's study, locked, and whether it was made now."""
    named = study_id(question)
    study = session.get(StudyRow, named, with_for_update=True)
    new = study is None
    if new:
        try:
            with session.begin_nested():
                session.add(_new_study(question, terms, clock(session)))
        except IntegrityError:  # another process asked at the same moment
            new = False
        study = queue.locked_study(session, named)
    assert study is not None
    if study.identity != question.identity:
        raise StoreError(f"the id {named} belongs to another question; use another --db")
    return study, new


def _new_study(question: Question, terms: Terms, now: datetime) -> StudyRow:
    identity = question.identity
    return StudyRow(
        id=study_id(question),
        identity=identity,
        kind=question.kind,
        model_name=question.trained,
        cluster_name=question.cluster.name,
        question=question.as_dict(),
        terms=terms.as_dict(),
        state=StudyState.QUEUED,
        reason="",
        pool=terms.pool,
        revision=0,
        # 31 bits, which every generator of random numbers takes, and not those of the id.
        seed=int(identity[-8:], 16) >> 1,
        probes_before=0,
        guard_s=0.0,
        guard_before_s=0.0,
        created_at=now,
        asked_at=now,
    )


def renew(
    session: Session, study: StudyRow, question: Question, terms: Terms, now: datetime
) -> None:
    """Puts a study on new terms; on other ones, what is queued is for the planner to ask for again.

    On the same ones it goes on, and the attempts that a probe has cost its workers stay counted.
    """
    if study.terms != terms.as_dict():
        queue.withdraw(session, study, "the question was asked again on other terms", now)
    done = (ProbeRow.study_id == study.id, ProbeRow.state == ProbeState.DONE)
    study.probes_before = session.scalar(select(func.count()).where(*done)) or 0
    study.guard_before_s, study.guard_s = study.guard_before_s + study.guard_s, 0.0
    study.question, study.model_name = question.as_dict(), question.trained
    study.terms, study.pool, study.asked_at = terms.as_dict(), terms.pool, now
    if study.state is StudyState.QUEUED:
        study.reason = ""


def named_study(session: Session, given: str) -> StudyRow:
    """The study whose id begins so; the ``st-`` may be left out.

    Raises:
        UsageError: there is none, or several.
    """
    begin = given.strip().lower()
    begin = begin if begin.startswith(ID_PREFIX) else ID_PREFIX + begin
    if begin != ID_PREFIX:
        if (whole := session.get(StudyRow, begin)) is not None:
            return whole
        # No index serves this: it is for people, and workers name studies whole.
        like = StudyRow.id.startswith(begin, autoescape=True)
        rows = session.scalars(select(StudyRow).where(like).order_by(StudyRow.id).limit(5)).all()
        if len(rows) == 1:
            return rows[0]
        if rows:
            ids = ", ".join(row.id for row in rows)
            raise UsageError("study", given, f"several begin so: {ids}")
    raise unknown_study(session, given)


def unknown_study(session: Session, given: str) -> UsageError:
    """What is wrong with a name that no study has."""
    newest = select(StudyRow.id).order_by(StudyRow.asked_at.desc()).limit(1000)
    ids = session.scalars(newest).all()
    if not ids:
        return UsageError("study", given, "no such study; there are none in this database yet")
    return UnknownNameError("study", given, ids)
