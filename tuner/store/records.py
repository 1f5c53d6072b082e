"""What the store hands out beside studies and probes: claims, events, summaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.measurement import Fidelity, Outcome
from tuner.store.identity import WorkerIdentity
from tuner.study import Probe, StudyState

LEASE_S = 60
"""Seconds for which a claim or a beat gives a worker its probe."""


class AttemptState(StrEnum):
    """Where an attempt of a probe stands. Only a running one may record."""

    RUNNING = "running"  # its worker holds the lease
    DONE = "done"  # its worker recorded an outcome
    LOST = "lost"  # the lease ran out, or the worker is known to be gone
    GIVEN_BACK = "given_back"  # its worker had to stop; it does not count as a try


class EventKind(StrEnum):
    """What an event tells."""

    ASKED = "asked"  # the question was asked: {"again", "terms"}
    STUDY = "study"  # the study moved: {"before", "state", "reason"}
    PROBE = "probe"  # a probe moved: {"probe", "settings", "repetition", "state", "attempt", ...}


class Scope(StrEnum):
    """What a key allows; each one allows what those before it do."""

    READ = "read"  # see studies and metrics
    SUBMIT = "submit"  # ask questions, and cancel studies
    ADMIN = "admin"  # see who did what


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a worker claims."""

    study_id: str
    """The study whose oldest queued probe is wanted."""
    worker: WorkerIdentity
    """Who wants it."""
    fidelity: Fidelity | None
    """Of the probe; any where there is none."""
    devices: tuple[str, ...]
    """Names of those that it is to run on, sorted: all who claim take them in one order."""
    lease_s: float
    """Seconds for which it is given."""
    key: str
    """Of this claim alone, sent again with it when it is not known what became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run one probe, until the lease runs out."""

    attempt_id: int
    """The attempt's row, which fences every write."""
    study_id: str
    """The probe's study."""
    probe: Probe
    """What to run."""
    worker: WorkerIdentity
    """Who holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a study. Ids grow in the order of commits of one study."""

    id: int
    """Its row, and the cursor to read on from."""
    study_id: str
    """The study."""
    kind: EventKind
    """What it tells."""
    at: str
    """When, UTC in ISO 8601, by the database's clock."""
    data: Mapping[str, Any]
    """Plain JSON values; see :class:`EventKind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One line of a list of studies."""

    id: str
    """The study's id."""
    model_name: str
    """Name of the model, as asked last; of a user's script that of its file."""
    cluster_name: str
    """Short spelling of the cluster."""
    state: StudyState
    """Where it stands."""
    reason: str
    """Why it stands there."""
    probes: Mapping[Outcome, int]
    """Finished probes by outcome."""
    pool: str
    """Label of the workers that may be at it; empty for any."""
    revision: int
    """Counts what became known of it, as :attr:`tuner.study.Study.revision`."""
    created_at: str
    """When it was first asked, UTC in ISO 8601."""
    asked_at: str
    """When it was asked last, UTC in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """A study that is not at its end, as a worker looks for one."""

    id: str
    """The study's id."""
    state: StudyState
    """Queued, or running."""
    pool: str
    """Label of the workers that may be at it; empty for any."""
    revision: int
    """As :attr:`tuner.study.Study.revision`: what could not be done then may be possible now."""
