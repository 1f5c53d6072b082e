"""Who did what, and who was refused: rows that are added, never changed, and deleted by age."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tuner.errors import UsageError
from tuner.store.clock import clock, iso
from tuner.store.engine import one_line
from tuner.store.tables import AuditRow
from tuner.store.transactions import Transactions

LONGEST_ACTOR = 64
PRUNED = 5000
"""Entries that are deleted in one transaction."""
LOCAL = "local"
"""The actor where no key is needed: whoever can reach this machine's loopback, or the database."""
NOBODY = "unknown"
"""The actor of a request whose key is not good."""


class Action(StrEnum):
    """What is noted."""

    KEY_CREATE = "key.create"  # {"key", "name", "scope"}
    KEY_REVOKE = "key.revoke"  # {"key", "name"}
    KEY_REFUSED = "key.refused"  # {"key", "address", "reason", "times"}; at most one a minute
    SCOPE_REFUSED = "scope.refused"  # {"address", "has", "needs", "times"}; likewise
    SIGN_IN = "session.begin"  # {"address"}
    SIGN_OUT = "session.end"  # {"address"}
    SUBMIT = "tune.submit"  # {"address"}; {"replaced": 1} where an open study got other terms
    JOIN = "tune.join"  # {"address"}; joined, or was answered from the store
    CANCEL = "tune.cancel"  # {"address"}
    PRUNE = "audit.prune"  # {"before"}; what was noted before that moment is deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did or was refused."""

    id: int
    """Its row; later ones are larger."""
    at: str
    """When, UTC in ISO 8601, by the database's clock."""
    actor: str
    """Id of a key; ``local``, with the user's name where a command did it; or ``unknown``."""
    action: str
    """What; see :class:`Action`."""
    study_id: str
    """The study that it was done to; empty for none."""
    data: Mapping[str, Any]
    """Plain JSON values; see :class:`Action`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


class Audit:
    """What is noted in a database. Each method is a transaction of its own."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions

    def note(self, actor: str, action: Action, study_id: str = "", **data: str | int) -> None:
        """Notes one thing; see :func:`add_audit`, which is for a transaction under way."""
        with self.transactions.write() as session:
            add_audit(session, actor, action, study_id, **data)

    def newest(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """The newest entries first, at most ``limit``; those older than the id ``before``."""
        wanted = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            wanted = wanted.where(AuditRow.id < before)
        with self.transactions.read() as session:
            return [_entry(row) for row in session.scalars(wanted)]

    def prune(self, before: datetime, by: str = LOCAL) -> int:
        """Deletes what was noted before a moment, and notes who did that first.

        In transactions of some thousand rows each, so that others can write between them.

        Returns:
            How many entries were deleted.

        Raises:
            UsageError: the moment is still to come.
        """
        with self.transactions.write() as session:
            if before > clock(session):
                raise UsageError("prune_before", before.isoformat(), "must not be in the future")
            add_audit(session, by, Action.PRUNE, before=iso(before) or "")
        old = select(AuditRow.id).where(AuditRow.at < before).order_by(AuditRow.at).limit(PRUNED)
        deleted = 0
        while True:
            with self.transactions.write() as session:
                ids = session.scalars(old).all()
                session.execute(delete(AuditRow).where(AuditRow.id.in_(ids)))
            deleted += len(ids)
            if len(ids) < PRUNED:
                return deleted


def add_audit(
    session: Session, actor: str, action: Action, study_id: str = "", **data: str | int
) -> None:
    """Notes one thing in the transaction that does it, so that neither is there alone.

    Texts of ``data`` may be a stranger's: they are cut to 200 printable characters. No secret may
    be among them.
    """
    short = {name: _printable(v) if isinstance(v, str) else v for name, v in data.items()}
    row = AuditRow(
        at=clock(session),
        actor=_printable(actor)[:LONGEST_ACTOR],
        action=str(action),
        study_id=study_id,
        data=short,
    )
    session.add(row)


def _printable(text: str) -> str:
    """One line of text that can change nothing of a terminal that shows it."""
    return "".join(character if character.isprintable() else "?" for character in one_line(text))


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=iso(row.at) or "",
        actor=row.actor,
        action=row.action,
        study_id=row.study_id,
        data=row.data,
    )
