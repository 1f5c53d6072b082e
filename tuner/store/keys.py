"""Keys to the service: made, looked at, revoked, and checked. Their secrets are nowhere kept."""

import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest

from sqlalchemy import exists, or_, select, update
from sqlalchemy.orm import Session

from tuner.errors import TunerError, UsageError
from tuner.store.audit import Action, add_audit
from tuner.store.clock import clock, iso
from tuner.store.records import Scope
from tuner.store.tables import KeyRow
from tuner.store.transactions import Transactions

log = logging.getLogger(__name__)

ID_BYTES = 8
SECRET_BYTES = 32
"""256 random bits. Nobody guesses them, so SHA-256 keeps them as well as a slow hash would."""
FORM = re.compile(r"tuner_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
"""A key as it is shown once. Its beginning lets scanners of source code find one that leaked."""
USED_EVERY = timedelta(minutes=1)
"""How exactly it is known when a key was used last: a write for each use would be the dearest part
of many requests."""
LONGEST_NAME = 64
NO_HASH = "0" * 64
"""What a key that does not exist is compared with, so that both take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is known of a key."""

    id: str
    """16 hexadecimal digits; not secret."""
    name: str
    """For people."""
    scope: Scope
    """What it allows."""
    created_at: str
    """UTC in ISO 8601, by the database's clock, as the other moments are."""
    last_used_at: str | None
    """``None`` when it never was; up to a minute old."""
    revoked_at: str | None
    """``None`` while it is good."""


def includes(given: Scope, wanted: Scope) -> bool:
    """Whether a scope allows what another does: each one allows what those before it do."""
    order = list(Scope)
    return order.index(given) >= order.index(wanted)


def key_id(text: str) -> str:
    """The id that is named in a key's text; empty when it has not the form of a key."""
    found = FORM.fullmatch(text)
    return found[1] if found else ""


class Keys:
    """The keys of a database. Each method is a transaction of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self._not_before: dict[str, float] = {}

    def create(self, name: str, scope: Scope, by: str = "local") -> tuple[Key, str]:
        """Makes a key; with its text, ``tuner_<id>_<secret>``, which cannot be had again.

        Raises:
            UsageError: the name is empty, longer than 64 characters, or not printable.
        """
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip()):
            raise UsageError("name", name, "must be 1 to 64 printable characters")
        number, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        with self.transactions.write() as session:
            row = KeyRow(
                id=number, name=name, hash=_hash(secret), scope=scope, created_at=clock(session)
            )
            session.add(row)
            add_audit(session, by, Action.KEY_CREATE, key=number, name=name, scope=str(scope))
            return _key(row), f"tuner_{number}_{secret}"

    def list(self) -> list[Key]:
        """All keys, revoked ones too, the oldest first."""
        with self.transactions.read() as session:
            rows = session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))
            return [_key(row) for row in rows]

    def any(self) -> bool:
        """Whether there is a key that is not revoked."""
        with self.transactions.read() as session:
            return bool(session.scalar(select(exists().where(KeyRow.revoked_at.is_(None)))))

    def revoke(self, beginning: str, by: str = "local") -> Key:
        """Ends a key for ever, from the next request on. One that was revoked stays as it is.

        Args:
            beginning: the id, or a beginning of it that no other key has; or the key's whole text.
            by: who does it.

        Raises:
            UsageError: there is no such key, or more than one.
        """
        with self.transactions.write() as session:
            row = _named(session, key_id(beginning) or beginning)
            if row.revoked_at is None:
                row.revoked_at = clock(session)
                add_audit(session, by, Action.KEY_REVOKE, key=row.id, name=row.name)
            return _key(row)

    def check(self, text: str) -> Key | None:
        """The key whose text this is; ``None`` when there is none, or it was revoked.

        Secrets are compared in constant time, and a key that does not exist takes as long as
        one whose secret is wrong.
        """
        found = FORM.fullmatch(text)
        if found is None:
            return None
        with self.transactions.read() as session:
            row = session.get(KeyRow, found[1])
            same = compare_digest(row.hash if row else NO_HASH, _hash(found[2]))
            if row is None or not same or row.revoked_at is not None:
                return None
            now = clock(session)
            used_lately = row.last_used_at is not None and now - row.last_used_at < USED_EVERY
            key = _key(row)
        if not used_lately:
            self._note_use(key.id, now)
        return key

    def _note_use(self, number: str, now: datetime) -> None:
        """Note it once, however many requests found at the same time that it was due.

        One thread of this process waits for the database to do so, and no other tries for a
        minute if that fails: a full disk must not keep anyone from reading.
        """
        if time.monotonic() < self._not_before.get(number, 0.0):
            return
        self._not_before[number] = time.monotonic() + USED_EVERY.total_seconds()
        due = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at <= now - USED_EVERY)
        try:
            with self.transactions.write() as session:
                session.execute(
                    update(KeyRow).where(KeyRow.id == number, due).values(last_used_at=now)
                )
            self._not_before.pop(number, None)
        except TunerError as error:
            log.warning("that key %s was used could not be noted: %s", number, error)


def _named(session: Session, beginning: str) -> KeyRow:
    rows: Sequence[KeyRow] = ()
    if re.fullmatch("[0-9a-f]{1,16}", beginning):
        like = KeyRow.id.startswith(beginning, autoescape=True)
        rows = session.scalars(select(KeyRow).where(like).limit(2).with_for_update()).all()
    if not rows:
        raise UsageError("key", beginning, "no such key; tuner keys list shows their ids")
    if len(rows) > 1:
        raise UsageError("key", beginning, "more than one key begins so; write more of its id")
    return rows[0]


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _key(row: KeyRow) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        scope=row.scope,
        created_at=iso(row.created_at) or "",
        last_used_at=iso(row.last_used_at),
        revoked_at=iso(row.revoked_at),
    )
