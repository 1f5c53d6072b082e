"""Verdicts of the guard: their rows, and those that a study is read with."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.guard.ruling import Ruling
from tuner.store.clock import clock, iso
from tuner.store.tables import GuardRow
from tuner.study import Question

if TYPE_CHECKING:
    from tuner.guard.verdict import Verdict


def read_verdicts(session: Session, family: str | None = None) -> "dict[str, Verdict]":
    """The verdicts of a family, or of all, by key, oldest first; none of another format."""
    from tuner.guard.verdict import Verdict

    query = select(GuardRow).order_by(GuardRow.created_at, GuardRow.key)
    rows = session.scalars(query if family is None else query.where(GuardRow.family == family))
    found = {}
    for row in rows:
        with suppress(ValueError, KeyError, TypeError):  # another version's: it is found anew
            found[row.key] = replace(Verdict.from_dict(row.record), date=iso(row.created_at))
    return found


def guards_of(session: Session, question: Question) -> "dict[str, Verdict]":
    """The verdicts that may say something of a question's settings, by key."""
    from tuner.guard.twin import family_of

    family = family_of(question)
    return read_verdicts(session, family) if family else {}


def keep_verdict(session: Session, verdict: "Verdict") -> None:
    """Keep a verdict in the place of an earlier one; one that was not reached replaces none."""
    row = session.get(GuardRow, verdict.key, with_for_update=True)
    undecided = Ruling.NOT_CHECKED
    if row is not None and verdict.ruling is undecided is not row.ruling:
        return
    now, record = clock(session), verdict.as_dict()
    if row is not None:
        row.ruling, row.record, row.created_at = verdict.ruling, record, now
        return
    new = GuardRow(
        key=verdict.key,
        family=verdict.family,
        ruling=verdict.ruling,
        record=record,
        created_at=now,
    )
    with suppress(IntegrityError), session.begin_nested():  # another was quicker
        session.add(new)
