"""Where studies are kept, and the queue of their probes: SQLAlchemy on SQLite or PostgreSQL."""

from tuner.store.asking import study_id
from tuner.store.engine import default_url
from tuner.store.identity import WorkerIdentity
from tuner.store.records import LEASE_S, Claim, Event, EventKind, OpenStudy, StudySummary
from tuner.store.store import Store, open_store

__all__ = [
    "LEASE_S",
    "Claim",
    "Event",
    "EventKind",
    "OpenStudy",
    "Store",
    "StudySummary",
    "WorkerIdentity",
    "default_url",
    "open_store",
    "study_id",
]
