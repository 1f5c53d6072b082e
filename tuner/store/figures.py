"""Figures of the whole database, for those who watch it.

Counts are read from indexes alone, never from rows, which hold whole measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.measurement import Outcome
from tuner.store.clock import clock
from tuner.store.records import LEASE_S, AttemptState
from tuner.store.tables import AttemptRow, DeviceRow, MeasurementRow, ProbeRow, StudyRow
from tuner.store.workers import read_living
from tuner.study import ProbeState, StudyState


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How much there is of everything, now. Every member of an enum is there, be it with 0."""

    studies: Mapping[StudyState, int]
    """Studies by state."""
    probes: Mapping[ProbeState, int]
    """Probes by state: the depth of the queue."""
    attempts: Mapping[AttemptState, int]
    """Attempts by state; those that were lost grow with every worker that dies."""
    outcomes: Mapping[Outcome, int]
    """Probes that are done, by outcome."""
    probe_s: Mapping[Outcome, float]
    """Seconds that these took, by outcome."""
    oldest_beat_s: float
    """Seconds since the last sign of the worker that has given none for longest, of those that
    hold a probe; 0 when none does."""
    devices_held: int
    """Devices on which an attempt runs."""
    workers_living: int
    """Workers that wait for studies or are at one."""


def read_figures(session: Session, lease_s: float = LEASE_S) -> Figures:
    """All figures, in eight queries.

    With a million probes, each with its attempt and its measurement, that takes 0.15 to 0.2 s on
    either kind of database, nearly all of it for counting measurements and attempts that are done.

    Args:
        session: to read in.
        lease_s: seconds for which a claim or a beat gives a worker its probe.
    """
    measured = _measured(session)
    return Figures(
        studies=_studies(session),
        probes=_probes(session, done=sum(count for count, _ in measured.values())),
        attempts=_attempts(session),
        outcomes={outcome: measured[outcome][0] for outcome in Outcome},
        probe_s={outcome: measured[outcome][1] for outcome in Outcome},
        oldest_beat_s=_oldest_beat_s(session, lease_s),
        devices_held=session.scalar(select(func.count()).select_from(DeviceRow)) or 0,
        workers_living=len(read_living(session, lease_s)),
    )


def _studies(session: Session) -> dict[StudyState, int]:
    by_state = select(StudyRow.state, func.count()).group_by(StudyRow.state)
    return {**dict.fromkeys(StudyState, 0), **dict(session.execute(by_state).all())}


def _attempts(session: Session) -> dict[AttemptState, int]:
    by_state = select(AttemptRow.state, func.count()).group_by(AttemptRow.state)
    return {**dict.fromkeys(AttemptState, 0), **dict(session.execute(by_state).all())}


def _probes(session: Session, done: int) -> dict[ProbeState, int]:
    """Those that are done have a measurement each, and were counted with it.

    None is queued in a study that has ended: what ends a study withdraws them.
    """
    queued = select(func.count()).where(ProbeRow.state == ProbeState.QUEUED)
    running = select(func.count()).where(ProbeRow.state == ProbeState.RUNNING)
    return {
        ProbeState.QUEUED: session.scalar(queued) or 0,
        ProbeState.RUNNING: session.scalar(running) or 0,
        ProbeState.DONE: done,
    }


def _measured(session: Session) -> dict[Outcome, tuple[int, float]]:
    """How many measurements have an outcome, and the seconds that they took."""
    wall_s = func.sum(MeasurementRow.wall_s)
    by_outcome = select(MeasurementRow.outcome, func.count(), wall_s)
    found = session.execute(by_outcome.group_by(MeasurementRow.outcome))
    counted = {outcome: (count, total_s) for outcome, count, total_s in found}
    return {outcome: counted.get(outcome, (0, 0.0)) for outcome in Outcome}


def _oldest_beat_s(session: Session, lease_s: float) -> float:
    running = AttemptRow.state == AttemptState.RUNNING
    until = session.scalar(select(func.min(AttemptRow.lease_until)).where(running))
    if until is None:
        return 0.0
    return max(0.0, lease_s - (until - clock(session)).total_seconds())
