"""The audit of who did what: entries are added, never changed, and deleted by age."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tuner.errors import UsageError
from tuner.store.engine import Transactions, one_line
from tuner.store.tables import AuditRow, clock, iso

LONGEST_ACTOR = 64
# Entries that are deleted in one transaction, so that others can write between two of them.
PRUNED = 5000
# The actor where no key is needed: whoever can reach this machine's loopback, or the database.
LOCAL = "local"


class Action(StrEnum):
    """Kind of an entry of the audit."""

    KEY_CREATE = "key.create"  # {"key", "name", "scope"}
    KEY_REVOKE = "key.revoke"  # {"key", "name"}
    SIGN_IN = "session.begin"  # {"address"}
    SIGN_OUT = "session.end"  # {"address"}
    SUBMIT = "tune.submit"  # {"address"}; {"replaced": 1} where an open study got other limits
    JOIN = "tune.join"  # {"address"}; joined, or was answered from the store
    CANCEL = "tune.cancel"  # {"address"}
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
        """Plain JSON values."""
        return asdict(self)


class Audit:
    """The audit of a database: rows that are added, never changed, and deleted by age."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions

    def note(self, actor: str, action: Action, study_id: str = "", **data: str | int) -> None:
        """Notes one thing, in a transaction of its own."""
        with self.transactions.write() as session:
            add_audit(session, AuditNote(actor=actor, action=action, data=data), study_id)

    def newest(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """The newest entries first, at most ``limit``; those older than the id ``before``."""
        wanted = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            wanted = wanted.where(AuditRow.id < before)
        with self.transactions.read() as session:
            return [
                AuditEntry(
                    id=row.id,
                    at=iso(row.at),
                    actor=row.actor,
                    action=row.action,
                    study_id=row.study_id,
                    data=row.data,
                )
                for row in session.scalars(wanted)
            ]

    def prune(self, before: datetime, by: str = LOCAL) -> int:
        """Deletes what was noted before a moment, and notes who did that first; the number of
        entries. UsageError if the moment is still to come."""
        with self.transactions.write() as session:
            if before > clock(session):
                raise UsageError("prune_before", before.isoformat(), "must not be in the future")
            note = AuditNote(actor=by, action=Action.PRUNE, data={"before": iso(before)})
            add_audit(session, note)
        old = select(AuditRow.id).where(AuditRow.at < before).order_by(AuditRow.at).limit(PRUNED)
        deleted = 0
        while True:
            with self.transactions.write() as session:
                ids = session.scalars(old).all()
                session.execute(delete(AuditRow).where(AuditRow.id.in_(ids)))
            deleted += len(ids)
            if len(ids) < PRUNED:
                return deleted


def add_audit(session: Session, note: AuditNote, study_id: str = "") -> None:
    """Adds an entry in the transaction that does the thing, so that neither is there alone."""
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
