"""Studies and the queue of their probes in a database: SQLAlchemy on SQLite or PostgreSQL."""

from tuner.store.claims import Claim
from tuner.store.engine import default_url
from tuner.store.requests import study_id
from tuner.store.rows import Attempt, Event, Moments
from tuner.store.store import Store, StudyStatus, StudySummary, open_store, why_kept
from tuner.store.tables import EventKind
from tuner.store.workers import WorkerIdentity

__all__ = [
    "Attempt",
    "Claim",
    "Event",
    "EventKind",
    "Moments",
    "Store",
    "StudyStatus",
    "StudySummary",
    "WorkerIdentity",
    "default_url",
    "open_store",
    "study_id",
    "why_kept",
]
