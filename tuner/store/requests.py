"""Questions that are asked, and requests that ask them with an idempotency key."""

# A request that is sent again because its answer got lost must not give a study new limits, nor
# start its budget anew.

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.core.study import OPEN, Limits, ProbeState, Question, StudyState, read_labels
from tuner.errors import OtherLimitsError, StoreError, UsageError
from tuner.store.access import AuditNote, add_audit
from tuner.store.engine import Transactions
from tuner.store.queue import move_study, withdraw
from tuner.store.rows import add_event, locked_study
from tuner.store.tables import EventKind, ProbeRow, RequestRow, StudyRow, clock

ID_PREFIX = "st-"
ID_DIGITS = 12

# Seconds for which a key is remembered.
KEPT_S = 24 * 3600
# Characters of a key.
LONGEST_KEY = 255


def study_id(question: Question) -> str:
    """The id of a question's study: ``st-`` and the first 12 digits of its identity."""
    return ID_PREFIX + question.identity[:ID_DIGITS]


def ask_question(
    session: Session,
    question: Question,
    limits: Limits,
    labels: Mapping[str, str],
    *,
    replace: bool = True,
) -> StudyRow:
    """Asks a question in a writing transaction; its study's row, locked. See :meth:`Store.ask`."""
    named = study_id(question)
    study = session.get(StudyRow, named, with_for_update=True)
    again = study is not None
    if study is None:
        now, identity, workload = clock(session), question.identity, question.workload
        new = StudyRow(
            id=named,
            identity=identity,
            kind=question.kind,
            model_name=question.trained,
            cluster_name=question.cluster.name,
            question=question.as_dict(),
            limits=limits.as_dict(),
            state=StudyState.QUEUED,
            reason="",
            pool=limits.pool,
            labels={},
            revision=0,
            # 31 bits, which every generator of random numbers takes, and not those of the id
            seed=int(identity[-8:], 16) >> 1,
            probes_before=0,
            guard_s=0.0,
            guard_before_s=0.0,
            created_at=now,
            asked_at=now,
            method=workload.adapter.method if workload.adapter else "full",
            global_batch_size=workload.global_batch_size,
            sequence_length=workload.sequence_length,
            framework=question.framework.name,
            fidelity=limits.fidelity,
            notes="",
        )
        try:
            with session.begin_nested():
                session.add(new)
        except IntegrityError:  # another process asked at the same moment
            again = True
        study = locked_study(session, named)
    if study.identity != question.identity:
        raise StoreError(f"the id {named} belongs to another question; use another --db")
    now = clock(session)
    if again:
        apart = limits.apart(study.limits)
        if apart and not replace and study.state in OPEN:
            raise OtherLimitsError(study.id, apart)
        # With other ones the planner asks again for what is queued. With the same ones the study
        # goes on, and the attempts that a probe has cost its workers stay counted.
        if study.limits != limits.as_dict():
            withdraw(session, study, "the question was asked again with other limits", now)
        done = (ProbeRow.study_id == study.id, ProbeRow.state == ProbeState.DONE)
        study.probes_before = session.scalar(select(func.count()).where(*done)) or 0
        study.guard_before_s, study.guard_s = study.guard_before_s + study.guard_s, 0.0
        study.question, study.model_name = question.as_dict(), question.trained
        study.limits, study.pool, study.asked_at = limits.as_dict(), limits.pool, now
        study.fidelity = limits.fidelity
        if study.state is StudyState.QUEUED:
            study.reason = ""
    study.revision += 1
    study.labels = read_labels("labels", {**study.labels, **labels})
    data = {"again": again, "terms": limits.as_dict()}
    add_event(session, study.id, EventKind.ASKED, now, data)
    if study.state not in OPEN:
        move_study(session, study, StudyState.QUEUED, "", now)
    session.flush()
    return study


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """A key that tells a request from all others of its sender."""

    owner: str  # id of the key to the service that it came with; empty where none is needed
    key: str  # the sender's own word for it
    body_hash: str  # hash of its body; see :func:`body_hash`

    def __post_init__(self) -> None:
        printable = self.key.isascii() and self.key.isprintable()
        if not printable or not 1 <= len(self.key) <= LONGEST_KEY:
            allowed = f"must be 1 to {LONGEST_KEY} printable ASCII characters"
            raise UsageError("Idempotency-Key", self.key, allowed)


def body_hash(value: object) -> str:
    """SHA-256, in hex, of a JSON value, however it was spelled."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Requests:
    """The requests that a database remembers. Each method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def answered(self, request: RequestKey) -> str | None:
        """The id of the study that answered the same request before; UsageError if another request
        had this key."""
        with self._transactions.read() as session:
            return _answered(session, request)

    def ask(
        self,
        question: Question,
        limits: Limits,
        request: RequestKey | None,
        note: AuditNote | None = None,
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        replace: bool = True,
    ) -> str:
        """Asks a question, and remembers its request and writes the note, all or nothing: the
        study's id. A known request asks nothing.
        """
        try:
            with self._transactions.write() as session:
                if request and (known := _answered(session, request)):
                    return known
                asked_id = ask_question(session, question, limits, labels, replace=replace).id
                if request:
                    _remember(session, request, asked_id)
                if note:
                    add_audit(session, note, asked_id)
                return asked_id
        except _TakenError:
            assert request is not None
            answered = self.answered(request)
            assert answered is not None, "whoever was quicker has written it"
            return answered

    def remember(self, request: RequestKey, study_id: str) -> None:
        """Remembers a request that a study answered as it was."""
        with suppress(_TakenError), self._transactions.write() as session:
            if _answered(session, request) is None:
                _remember(session, request, study_id)


class _TakenError(Exception):
    """The same key came in elsewhere at the same moment, and was quicker."""


def _answered(session: Session, request: RequestKey) -> str | None:
    row = session.get(RequestRow, (request.owner, request.key))
    if row is None or row.created_at < clock(session) - timedelta(seconds=KEPT_S):
        return None
    if row.body_hash != request.body_hash:
        allowed = "was sent with another body; a new question needs a new key"
        raise UsageError("Idempotency-Key", request.key, allowed)
    return row.study_id


def _remember(session: Session, request: RequestKey, study_id: str) -> None:
    now = clock(session)
    old = RequestRow.created_at < now - timedelta(seconds=KEPT_S)
    session.execute(delete(RequestRow).where(old))
    row = RequestRow(
        owner=request.owner,
        idempotency_key=request.key,
        body_hash=request.body_hash,
        study_id=study_id,
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise _TakenError from error
