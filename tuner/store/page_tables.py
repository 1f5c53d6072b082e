"""The tables of what pages need beside studies: a line on each study, and who has signed in.

headlines                              one per study at most: its answer in one line
sessions                               of browsers, each on behalf of a key
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, MetaData, String
from sqlalchemy.orm import Mapped, mapped_column

from tuner.store.tables import Base, JsonText, UtcTime


class HeadlineRow(Base):
    """The answer of a study in one line, as it was when it was last computed."""

    __tablename__ = "headlines"

    study_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True
    )
    newest_event: Mapped[int] = mapped_column(BigInteger)
    """Id of the study's newest event before the answer was computed."""
    content: Mapped[dict[str, Any]] = mapped_column(JsonText)
    """``Headline.as_dict()``."""
    made_at: Mapped[datetime] = mapped_column(UtcTime)


class SessionRow(Base):
    """A browser that has signed in with a key. Its token itself is nowhere kept."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256, in hex, of the token, which is 256 random bits."""
    key_id: Mapped[str] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"), index=True)
    """The key that it is on behalf of."""
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    expires_at: Mapped[datetime] = mapped_column(UtcTime, index=True)
    """When it ends unless it is used before; each use may put it off."""


METADATA: MetaData = Base.metadata
"""All tables, these and those of :mod:`tuner.store.tables`."""
