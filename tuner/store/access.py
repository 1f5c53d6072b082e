"""Keys to the service, sessions of browsers that signed in with one, and the audit of who did what.

Secrets and tokens are nowhere kept. Entries of the audit are added, never changed, and deleted by
age.
"""

import getpass
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from tuner.errors import TunerError, UsageError
from tuner.store.engine import Transactions, one_line
from tuner.store.tables import AuditRow, KeyRow, Scope, SessionRow, UtcNow, clock, from_row, iso

LONGEST_ACTOR = 64
# Entries that are deleted in one transaction, so that others can write between two of them.
PRUNED = 5000
# Entries that a service keeps, of some 150 bytes each; whoever may sign in can have them written.
MOST_ENTRIES = 1_000_000
# The actor where no key is needed: whoever can reach this machine's loopback, or the database.
LOCAL = "local"


def local_user() -> str:
    """The actor of a command: ``local``, with the user's name."""
    try:
        return f"{LOCAL} {getpass.getuser()}"
    except (OSError, KeyError):  # a user without a name, as in a container
        return LOCAL


class Action(StrEnum):
    """Kind of an entry of the audit."""

    KEY_CREATE = "key.create"  # {"key", "name", "scope"}
    KEY_REVOKE = "key.revoke"  # {"key", "name"}
    SIGN_IN = "session.begin"  # {"address"}
    SIGN_OUT = "session.end"  # {"address"}
    SUBMIT = "tune.submit"  # {"address"}; {"replaced": 1} where an open study got other limits
    JOIN = "tune.join"  # {"address"}; joined, or was answered from the store
    CANCEL = "tune.cancel"  # {"address"}
    LABEL = "study.label"  # {"address"}; its name, tags or notes were changed
    DELETE = "tune.delete"  # {"address"}, or {"before"} where it was deleted for its age
    PRUNE = "audit.prune"  # {"before"}; what was noted before that moment is deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditNote:
    """One thing that somebody does, to be written to the audit with it."""

    actor: str  # id of a key; or `local`, with the user's name where a command does it
    action: Action
    data: Mapping[str, str | int] = field(default_factory=dict)
    """Plain values, none of them secret. Texts may be a stranger's: they are cut to 200 printable
    characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did."""

    id: int
    at: str  # time, UTC in ISO 8601, by the database's clock
    actor: str  # see :attr:`AuditNote.actor`
    action: str
    study_id: str  # the study that it was done to; empty for none
    data: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Audit:
    """The audit of a database: rows that are added, never changed, and deleted by age."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions

    def note(self, actor: str, action: Action, study_id: str = "", **data: str | int) -> None:
        with self.transactions.write() as session:
            add_audit(session, AuditNote(actor=actor, action=action, data=data), study_id)

    def newest(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """The newest entries first, at most ``limit``; those older than the id ``before``."""
        wanted = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            wanted = wanted.where(AuditRow.id < before)
        with self.transactions.read() as session:
            return [from_row(AuditEntry, row) for row in session.scalars(wanted)]

    def prune(self, before: datetime, by: str = LOCAL) -> int:
        """Deletes what was noted before a moment, and notes who did that first; the number of
        entries."""
        with self.transactions.write() as session:
            note = AuditNote(actor=by, action=Action.PRUNE, data={"before": iso(before)})
            add_audit(session, note)
        return self._delete(AuditRow.at < before)

    def trim(self, most: int = MOST_ENTRIES) -> int:
        """Deletes the oldest entries beyond so many; how many."""
        with self.transactions.read() as session:
            newest = session.scalar(select(func.max(AuditRow.id))) or 0
        return self._delete(AuditRow.id <= newest - most)

    def _delete(self, which: ColumnElement[bool]) -> int:
        oldest = select(AuditRow.id).where(which).order_by(AuditRow.id).limit(PRUNED)
        deleted = 0
        while True:
            with self.transactions.write() as session:
                ids = session.scalars(oldest).all()
                session.execute(delete(AuditRow).where(AuditRow.id.in_(ids)))
            deleted += len(ids)
            if len(ids) < PRUNED:
                return deleted


def add_audit(session: Session, note: AuditNote | None, study_id: str = "") -> None:
    """Adds an entry, if there is one, in the transaction that does the thing, so that neither is
    there alone."""
    if note is None:
        return
    short = {name: _printable(v) if isinstance(v, str) else v for name, v in note.data.items()}
    row = AuditRow(
        at=clock(session),
        actor=_printable(note.actor)[:LONGEST_ACTOR],
        action=str(note.action),
        study_id=study_id,
        data=short,
    )
    session.add(row)


def _printable(text: str) -> str:
    """One line of text that can change nothing of a terminal that shows it."""
    return "".join(character if character.isprintable() else "?" for character in one_line(text))


log = logging.getLogger(__name__)

ID_BYTES = 8
# Nobody guesses 256 random bits, so SHA-256 keeps them as well as a slow hash would.
SECRET_BYTES = 32
# The beginning lets scanners of source code find a key that leaked.
KEY_FORM = re.compile(r"tuner_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
# A write for each use would be the dearest part of many requests.
# Precision with which it is known when a key was last used.
USED_EVERY = timedelta(minutes=1)
LONGEST_NAME = 64
# A key that does not exist is compared with this, so that both take as long.
NO_HASH = "0" * 64

# Time after which one signs in again, however busy one was.
LASTS = timedelta(days=7)
# Time without a request after which one signs in again.
IDLE = timedelta(hours=12)
# Sessions of one key; those that would be over first end when more begin.
MOST_SESSIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key to the service, without its secret."""

    id: str  # 16 hexadecimal digits; not secret
    name: str
    scope: Scope
    created_at: str
    last_used_at: str | None  # `None` when it never was; up to a minute old
    revoked_at: str | None  # `None` while it is good


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A session that is not over."""

    key_id: str
    name: str
    scope: Scope
    session_id: str  # names the session to others of this database; nobody signs in with it


def includes(scope: Scope, needed: Scope) -> bool:
    """True if a scope allows what another does: each one allows what those before it do."""
    order = list(Scope)
    return order.index(scope) >= order.index(needed)


def key_id(text: str) -> str:
    """The id that is named in a key's text; empty when it has not the form of a key."""
    found = KEY_FORM.fullmatch(text)
    return found[1] if found else ""


class Keys:
    """The keys of a database. Each method is a transaction of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self._uses = _Uses(transactions)

    def create(self, name: str, scope: Scope, by: str = LOCAL) -> tuple[Key, str]:
        """Makes a key; with its text, ``tuner_<id>_<secret>``, which cannot be read again."""
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip()):
            raise UsageError("name", name, "must be 1 to 64 printable characters")
        new_id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        with self.transactions.write() as session:
            row = KeyRow(
                id=new_id, name=name, hash=_hash(secret), scope=scope, created_at=clock(session)
            )
            session.add(row)
            data = {"key": new_id, "name": name, "scope": str(scope)}
            add_audit(session, AuditNote(actor=by, action=Action.KEY_CREATE, data=data))
            return from_row(Key, row), f"tuner_{new_id}_{secret}"

    def list(self) -> list[Key]:
        """All keys, revoked ones too, the oldest first."""
        with self.transactions.read() as session:
            rows = session.scalars(select(KeyRow).order_by(KeyRow.created_at, KeyRow.id))
            return [from_row(Key, row) for row in rows]

    def any(self) -> bool:
        with self.transactions.read() as session:
            return bool(session.scalar(select(exists().where(KeyRow.revoked_at.is_(None)))))

    def revoke(self, beginning: str, by: str = LOCAL) -> Key:
        """Ends a key for ever, from the next request on. One that was revoked stays as it is.

        Args:
            beginning: the id, or a beginning of it that no other key has; or the key's whole text.
        """
        beginning = key_id(beginning) or beginning
        with self.transactions.write() as session:
            rows: Sequence[KeyRow] = ()
            if re.fullmatch("[0-9a-f]{1,16}", beginning):
                like = KeyRow.id.startswith(beginning, autoescape=True)
                found = select(KeyRow).where(like).limit(2).with_for_update()
                rows = session.scalars(found).all()
            if not rows:
                raise UsageError("key", beginning, "no such key; tuner keys list shows their ids")
            if len(rows) > 1:
                more = "more than one key begins so; write more of its id"
                raise UsageError("key", beginning, more)
            [row] = rows
            if row.revoked_at is None:
                row.revoked_at = clock(session)
                data = {"key": row.id, "name": row.name}
                add_audit(session, AuditNote(actor=by, action=Action.KEY_REVOKE, data=data))
            return from_row(Key, row)

    def check(self, text: str) -> Key | None:
        """The key whose text this is; ``None`` when there is none, or it was revoked."""
        # Secrets are compared in constant time, and a key that does not exist takes as long as
        # one whose secret is wrong.
        found = KEY_FORM.fullmatch(text)
        if found is None:
            return None
        with self.transactions.read() as session:
            row = session.get(KeyRow, found[1])
            same = compare_digest(row.hash if row else NO_HASH, _hash(found[2]))
            if row is None or not same or row.revoked_at is not None:
                return None
            now = clock(session)
            used_lately = row.last_used_at is not None and now - row.last_used_at < USED_EVERY
            key = from_row(Key, row)
        if not used_lately:
            self._uses.note(key.id, now)
        return key


class Sessions:
    """The sessions of a database. Each method is a transaction of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self._uses = _Uses(transactions)

    def begin(self, key_id: str, *, address: str = "", instead_of: str | None = None) -> str:
        """Begins a session of a key that was checked; its token, which cannot be read again. The
        session of the token ``instead_of`` ends with this."""
        token = secrets.token_urlsafe(SECRET_BYTES)
        with self.transactions.write() as session:
            now = clock(session)
            session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            of_key = select(SessionRow.token_hash).where(SessionRow.key_id == key_id)
            oldest = of_key.order_by(SessionRow.expires_at.desc()).offset(MOST_SESSIONS - 1)
            ended = session.scalars(oldest).all()
            session.execute(delete(SessionRow).where(SessionRow.token_hash.in_(ended)))
            if instead_of is not None:
                replaced = SessionRow.token_hash == _hash(instead_of)
                session.execute(delete(SessionRow).where(replaced))
            row = SessionRow(
                token_hash=_hash(token), key_id=key_id, created_at=now, expires_at=now + IDLE
            )
            session.add(row)
            data = {"address": address}
            add_audit(session, AuditNote(actor=key_id, action=Action.SIGN_IN, data=data))
        return token

    def check(self, token: str) -> SignedIn | None:
        """The session of a token; ``None`` when it is over, or its key was revoked."""
        wanted = (
            select(SessionRow, KeyRow, UtcNow())
            .join(KeyRow, KeyRow.id == SessionRow.key_id)
            .where(SessionRow.token_hash == _hash(token), KeyRow.revoked_at.is_(None))
        )
        with self.transactions.read() as session:
            found = session.execute(wanted).one_or_none()
            if found is None:
                return None
            row, key, now = found
            if now >= row.expires_at:
                return None
            # Each use puts the end off, so that one moment tells when the session is over.
            until = min(row.created_at + LASTS, now + IDLE)
            noted_at = key.last_used_at or row.created_at
            noted_lately = max(until - row.expires_at, now - noted_at) < USED_EVERY
            signed_in = SignedIn(
                key_id=key.id, name=key.name, scope=key.scope, session_id=row.token_hash
            )
        if not noted_lately:
            self._uses.note(signed_in.key_id, now, signed_in.session_id, until)
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
                data = {"address": address}
                add_audit(session, AuditNote(actor=row.key_id, action=Action.SIGN_OUT, data=data))
                session.delete(row)


class _Uses:
    """Notes uses of keys and sessions, once however many requests found that it was due."""

    # One thread of this process waits for the database to do so, and no other tries for a minute
    # if that fails: a full disk must not keep anyone from reading.

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._not_before: dict[str, float] = {}

    def note(
        self, key_id: str, now: datetime, session_id: str = "", until: datetime | None = None
    ) -> None:
        """Notes a use of a key, and that its session, if one was used, lasts until a moment."""
        used = session_id or key_id
        if time.monotonic() < self._not_before.get(used, 0.0):
            return
        self._not_before[used] = time.monotonic() + USED_EVERY.total_seconds()
        is_due = or_(KeyRow.last_used_at.is_(None), KeyRow.last_used_at <= now - USED_EVERY)
        this_session: list[ColumnElement[bool]] = [SessionRow.token_hash == session_id]
        if until is not None:
            this_session.append(SessionRow.expires_at < until)
        try:
            with self._transactions.write_if_free() as session:
                if session_id:
                    longer = update(SessionRow).where(*this_session).values(expires_at=until)
                    session.execute(longer)
                this_key = update(KeyRow).where(KeyRow.id == key_id, is_due)
                session.execute(this_key.values(last_used_at=now))
            self._not_before.pop(used, None)
        except TunerError as error:
            log.warning("that key %s was used could not be noted: %s", key_id, error)


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
