"""The answers of studies in one line, kept so that a list of them computes none."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.errors import UsageError
from tuner.results.headline import Headline
from tuner.store.clock import clock, iso
from tuner.store.page_tables import HeadlineRow
from tuner.store.transactions import Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHeadline:
    """A headline that is kept."""

    headline: Headline
    """The answer in one line."""
    newest_event: int
    """Id of the study's newest event before it was made; newer ones may have changed it."""
    made_at: str
    """When, UTC in ISO 8601, by the database's clock."""


class Headlines:
    """The headlines of a database. Each method is a short transaction of its own.

    Args:
        transactions: of an open store.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def put(self, headline: Headline, newest_event: int) -> bool:
        """Keeps a headline in the place of an earlier one; whether it was written.

        Nothing is written where the same is kept already, or one that is made of more, or where
        there is no such study any more.

        Args:
            headline: the answer in one line.
            newest_event: id of the study's newest event before the answer was computed.

        Raises:
            StoreError: the database fails.
            UsageError: it cannot be written; the field is ``db``.
        """
        with self._transactions.read() as session:
            if not _is_news(session.get(HeadlineRow, headline.study_id), headline, newest_event):
                return False
        # What is lost in a power cut is computed again.
        with self._transactions.write(durable=False) as session:
            return _put(session, headline, newest_event)

    def of(self, study_ids: Collection[str]) -> dict[str, KeptHeadline]:
        """The headlines of studies, by id, in one query; those without one are left out.

        One that another version has written in another form counts as none.

        Raises:
            StoreError: the database fails.
        """
        if not study_ids:
            return {}
        wanted = select(HeadlineRow).where(HeadlineRow.study_id.in_(sorted(study_ids)))
        found = {}
        with self._transactions.read() as session:
            for row in session.scalars(wanted):
                with suppress(KeyError, TypeError, ValueError, UsageError):
                    found[row.study_id] = _kept(row)
        return found


def _kept(row: HeadlineRow) -> KeptHeadline:
    return KeptHeadline(
        headline=Headline.from_dict(row.content),
        newest_event=row.newest_event,
        made_at=iso(row.made_at) or "",
    )


def _is_news(kept: HeadlineRow | None, headline: Headline, newest_event: int) -> bool:
    if kept is None or kept.newest_event < newest_event:
        return True
    return kept.newest_event == newest_event and kept.content != headline.as_dict()


def _put(session: Session, headline: Headline, newest_event: int) -> bool:
    row = session.get(HeadlineRow, headline.study_id, with_for_update=True)
    if not _is_news(row, headline, newest_event):
        return False
    content, now = headline.as_dict(), clock(session)
    if row is not None:
        row.newest_event, row.content, row.made_at = newest_event, content, now
        return True
    new = HeadlineRow(
        study_id=headline.study_id, newest_event=newest_event, content=content, made_at=now
    )
    with suppress(IntegrityError), session.begin_nested():  # another was quicker, or no study
        session.add(new)
        return True
    return False
