"""Questions that were asked with a key of the caller's own, so that asking twice asks once.

A request that is sent again because its answer got lost must not put a study on new terms, nor
start its budget anew. Keys are kept for a day.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import UsageError
from tuner.store.asking import ask
from tuner.store.clock import clock
from tuner.store.tables import RequestRow
from tuner.store.transactions import Transactions
from tuner.study import Question, Terms

KEPT_S = 24 * 3600
"""Seconds for which a key is remembered."""
LONGEST_KEY = 255
"""Characters of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """What tells a request from all others of its sender.

    Raises:
        UsageError: the key is empty, too long, or has other characters than printable ASCII.
    """

    owner: str
    """Id of the key to the service that it came with; empty where none is needed."""
    key: str
    """The sender's own word for it."""
    body_hash: str
    """Of what was asked: see :func:`body_hash`."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= LONGEST_KEY or not (
            self.key.isascii() and self.key.isprintable()
        ):
            allowed = f"must be 1 to {LONGEST_KEY} printable ASCII characters"
            raise UsageError("Idempotency-Key", self.key, allowed)


def body_hash(value: object) -> str:
    """SHA-256, in hex, of a JSON value, however it was spelled."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _TakenError(Exception):
    """The same key came in elsewhere at the same moment, and was quicker."""


class Requests:
    """The requests that a database remembers. Each method is one short transaction.

    Args:
        transactions: of an open store.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def answered(self, request: RequestKey) -> str | None:
        """The id of the study that answered the same request before.

        Raises:
            UsageError: another request had this key.
        """
        with self._transactions.read() as session:
            return _known(session, request)

    def ask(
        self,
        question: Question,
        terms: Terms,
        request: RequestKey | None,
        also: Callable[[Session, str], None] = lambda session, study_id: None,
        *,
        replace: bool = True,
    ) -> str:
        """Ask a question, and remember its request, both or neither.

        Args:
            question: what is asked.
            terms: on what terms.
            request: to remember; a known one asks nothing.
            also: writes more in the same transaction; it is given the study's id.
            replace: whether an open study is put on these terms, if it is on other ones.

        Returns:
            The study's id.

        Raises:
            UsageError: another request had this key.
            OtherTermsError: the study is open on terms that are not to be replaced.
        """
        try:
            with self._transactions.write() as session:
                if request and (known := _known(session, request)):
                    return known
                study_id = ask(session, question, terms, replace=replace).id
                if request:
                    _remember(session, request, study_id)
                also(session, study_id)
                return study_id
        except _TakenError:
            assert request is not None
            answered = self.answered(request)
            assert answered is not None, "whoever was quicker has written it"
            return answered

    def remember(self, request: RequestKey, study_id: str) -> None:
        """Remember a request that a study answered as it stands.

        Raises:
            UsageError: another request had this key.
        """
        with suppress(_TakenError), self._transactions.write() as session:
            if _known(session, request) is None:
                _remember(session, request, study_id)


def _known(session: Session, request: RequestKey) -> str | None:
    row = session.get(RequestRow, (request.owner, request.key))
    if row is None or row.created_at < clock(session) - timedelta(seconds=KEPT_S):
        return None
    if row.body_hash != request.body_hash:
        allowed = "was sent with another body; a new question needs a new key"
        raise UsageError("Idempotency-Key", request.key, allowed)
    return row.study_id


def _remember(session: Session, request: RequestKey, study_id: str) -> None:
    """Enter a request, and forget old ones."""
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
