"""Figures of the whole database, for those who watch it."""

# Counts are read from indexes alone, never from rows, which hold whole measurements.

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner.core import lease
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import ProbeState, StudyState
from tuner.store.engine import Transactions
from tuner.store.tables import (
    AttemptRow,
    AttemptState,
    DeviceRow,
    MeasurementRow,
    ProbeRow,
    StudyRow,
    clock,
)
from tuner.store.workers import read_living, read_silent

S = TypeVar("S", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How much there is of everything, now. Every member of an enum is there, be it with 0."""

    studies: Mapping[StudyState, int]
    probes: Mapping[ProbeState, int]  # probes by state: the depth of the queue
    attempts: Mapping[AttemptState, int]
    """Attempts by state; those that were lost grow with every worker that dies."""
    outcomes: Mapping[Outcome, int]
    probe_s: Mapping[Outcome, float]  # seconds that these took, by outcome
    oldest_beat_s: float
    """Seconds since the last sign of the worker that has given none for longest, of those that
    hold a probe; 0 when none does."""
    devices_held: int
    workers_living: int  # workers that wait for studies or are at one


def usual_probe_s(transactions: Transactions, fidelity: Fidelity, most: int = 50) -> float | None:
    """Seconds that the latest probes of a fidelity took on average; ``None`` before the first."""
    latest = (
        select(MeasurementRow.wall_s)
        .join(ProbeRow, ProbeRow.id == MeasurementRow.probe_id)
        .where(ProbeRow.fidelity == fidelity, ProbeRow.state == ProbeState.DONE)
        .order_by(ProbeRow.id.desc())
        .limit(most)
        .subquery()
    )
    with transactions.read() as session:
        return session.scalar(select(func.avg(latest.c.wall_s)))


def read_figures(transactions: Transactions) -> Figures:
    """All figures, in ten queries.

    With a million probes, each with its attempt and its measurement, that takes 0.15 to 0.2 s on
    either kind of database, nearly all of it for counting measurements and attempts that are done.
    """
    with transactions.read() as session:
        wall_s = func.sum(MeasurementRow.wall_s)
        measured = {
            outcome: (count, total_s)
            for outcome, count, total_s in session.execute(
                select(MeasurementRow.outcome, func.count(), wall_s).group_by(
                    MeasurementRow.outcome
                )
            )
        }
        # A probe that is done has a measurement, and was counted with it. None is queued in a
        # study that has ended: its end withdraws them.
        waiting = {
            state: session.scalar(select(func.count()).where(ProbeRow.state == state)) or 0
            for state in (ProbeState.QUEUED, ProbeState.RUNNING)
        }
        running = AttemptRow.state == AttemptState.RUNNING
        now = clock(session)
        until = session.scalar(select(func.min(AttemptRow.lease_until)).where(running))
        silent_s = lease.LEASE_S - (until - now).total_seconds() if until else 0.0
        # Nobody has taken them from their workers yet.
        overdue = select(func.count()).where(running, AttemptRow.lease_until <= now)
        lost = session.scalar(overdue) or 0
        left = sum(one.has_left for one in read_silent(session).values())
        studies = _by_state(session, StudyState, StudyRow.state)
        attempts = _by_state(session, AttemptState, AttemptRow.state)
        studies[StudyState.RUNNING] -= left
        studies[StudyState.QUEUED] += left
        attempts[AttemptState.RUNNING] -= lost
        attempts[AttemptState.LOST] += lost
        waiting[ProbeState.RUNNING] -= lost
        waiting[ProbeState.QUEUED] += lost
        return Figures(
            studies=studies,
            probes={**waiting, ProbeState.DONE: sum(count for count, _ in measured.values())},
            attempts=attempts,
            outcomes={outcome: measured.get(outcome, (0, 0.0))[0] for outcome in Outcome},
            probe_s={outcome: measured.get(outcome, (0, 0.0))[1] for outcome in Outcome},
            oldest_beat_s=max(0.0, silent_s),
            devices_held=session.scalar(select(func.count()).select_from(DeviceRow)) or 0,
            workers_living=len(read_living(session)),
        )


def _by_state(session: Session, states: type[S], column: InstrumentedAttribute[S]) -> dict[S, int]:
    found = session.execute(select(column, func.count()).group_by(column))
    return {**dict.fromkeys(states, 0), **dict(found.all())}
