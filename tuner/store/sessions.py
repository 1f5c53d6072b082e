"""Sessions of people who signed in with a key. Their tokens are nowhere kept."""

import logging
import secrets
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import ColumnElement, delete, or_, select, update

from tuner.errors import TunerError
from tuner.store.audit import Action, add_audit
from tuner.store.clock import clock
from tuner.store.keys import USED_EVERY
from tuner.store.page_tables import SessionRow
from tuner.store.records import Scope
from tuner.store.tables import KeyRow, UtcNow
from tuner.store.transactions import Transactions

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
"""256 random bits, as the secret of a key."""
LASTS = timedelta(days=7)
"""After which one signs in again, however busy one was."""
IDLE = timedelta(hours=12)
"""After which one signs in again if nothing was asked meanwhile. A session is kept until then, and
longer each time that it is used, so that one moment says when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """Whose session it is."""

    key_id: str
    """The key that was given."""
    name: str
    """That key's, for people."""
    scope: Scope
    """What that key allows."""
    session_id: str
    """Names the session to others of this database; nobody signs in with it."""


class Sessions:
    """The sessions of a database. Each method is a transaction of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self._not_before: dict[str, float] = {}

    def begin(self, key_id: str, *, address: str = "", instead_of: str | None = None) -> str:
        """Begins a session of a key that was checked; its token, which cannot be had again.

        Args:
            key_id: the key's.
            address: where from, for the audit.
            instead_of: token of a session that ends with this, if there is one.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self.transactions.write() as session:
            now = clock(session)
            session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            if instead_of is not None:
                session.execute(delete(SessionRow).where(_is(instead_of)))
            row = SessionRow(
                token_hash=_hash(token),
                key_id=key_id,
                created_at=now,
                expires_at=now + IDLE,
            )
            session.add(row)
            add_audit(session, key_id, Action.SIGN_IN, address=address)
        return token

    def check(self, token: str) -> SignedIn | None:
        """Whose session it is; ``None`` when it is over, or its key was revoked."""
        wanted = (
            select(SessionRow, KeyRow, UtcNow())
            .join(KeyRow, KeyRow.id == SessionRow.key_id)
            .where(_is(token), KeyRow.revoked_at.is_(None))
        )
        with self.transactions.read() as session:
            found = session.execute(wanted).one_or_none()
            if found is None:
                return None
            row, key, now = found
            if now >= row.expires_at:
                return None
            until = min(row.created_at + LASTS, now + IDLE)
            noted_at = key.last_used_at or row.created_at
            noted_lately = max(until - row.expires_at, now - noted_at) < USED_EVERY
            signed_in = SignedIn(
                key_id=key.id, name=key.name, scope=key.scope, session_id=row.token_hash
            )
        if not noted_lately:
            self._note_use(_hash(token), signed_in.key_id, now, until)
        return signed_in

    def open_ids(self) -> set[str]:
        """Ids of the sessions that are not over, and whose keys were not revoked."""
        wanted = (
            select(SessionRow.token_hash, SessionRow.expires_at, UtcNow())
            .join(KeyRow, KeyRow.id == SessionRow.key_id)
            .where(KeyRow.revoked_at.is_(None))
        )
        with self.transactions.read() as session:
            return {found for found, until, now in session.execute(wanted) if now < until}

    def end(self, token: str, *, address: str = "") -> None:
        """Ends a session; one that is over stays so."""
        with self.transactions.write() as session:
            row = session.get(SessionRow, _hash(token))
            if row is not None:
                add_audit(session, row.key_id, Action.SIGN_OUT, address=address)
                session.delete(row)

    def _note_use(self, token_hash: str, key_id: str, now: datetime, until: datetime) -> None:
        """Note that it and its key were used, as :class:`tuner.store.keys.Keys` does, and why."""
        if time.monotonic() < self._not_before.get(token_hash, 0.0):
            return
        self._not_before[token_hash] = time.monotonic() + USED_EVERY.total_seconds()
        this_session = (SessionRow.token_hash == token_hash, SessionRow.expires_at < until)
        unused = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at <= now - USED_EVERY)
        try:
            with self.transactions.write() as session:
                longer = update(SessionRow).where(*this_session).values(expires_at=until)
                session.execute(longer)
                used = update(KeyRow).where(KeyRow.id == key_id, unused).values(last_used_at=now)
                session.execute(used)
            self._not_before.pop(token_hash, None)
        except TunerError as error:
            log.warning("that a session of key %s was used was not noted: %s", key_id, error)


def _is(token: str) -> ColumnElement[bool]:
    return SessionRow.token_hash == _hash(token)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
