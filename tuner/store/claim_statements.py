"""The statements of a claim, each made once: to put one together takes longer than to run it."""

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    ScalarSelect,
    Select,
    Update,
    bindparam,
    func,
    insert,
    select,
    update,
)

from tuner.measurement import Outcome
from tuner.store.records import AttemptState
from tuner.store.tables import Base, UtcNow
from tuner.study import ProbeState

TABLES = Base.metadata.tables
ATTEMPTS, DEVICES, EVENTS = TABLES["attempts"], TABLES["devices"], TABLES["events"]
PROBES, STUDIES = TABLES["probes"], TABLES["studies"]


@cache
def study_and_clock() -> Select[Any]:
    """Locks a study: its state, and the time when the lock was had, not when it was asked for."""
    locked = select(STUDIES.c.state).where(STUDIES.c.id == bindparam("of_study"))
    return select(locked.with_for_update().subquery().c.state, UtcNow().label("now"))


@cache
def untroubled(*, any_fidelity: bool) -> Select[Any]:
    """The oldest queued probe that never lost a device, and the number of its next attempt."""
    return (
        queued(bindparam("of_study"), any_fidelity=any_fidelity)
        .add_columns(next_number(PROBES.c.id))
        .where(~lost_a_device())
        .limit(1)
    )


@cache
def with_losses(*, any_fidelity: bool) -> Select[Any]:
    """Queued probes that lost a device, oldest first, and the attempts in which they did."""
    c = ATTEMPTS.c
    columns = (c.id.label("attempt_id"), c.devices, c.ended_at)
    return (
        queued(bindparam("of_study"), any_fidelity=any_fidelity)
        .add_columns(next_number(PROBES.c.id), *columns)
        .where(c.probe_id == PROBES.c.id, c.outcome == Outcome.DEVICE_LOST)
    )


def queued(study_id: ColumnElement[Any], *, any_fidelity: bool) -> Select[Any]:
    """Queued probes of a study that is locked, oldest first; nobody else locks them."""
    which = [PROBES.c.state == ProbeState.QUEUED, PROBES.c.study_id == study_id]
    which += [] if any_fidelity else [PROBES.c.fidelity == bindparam("of_fidelity")]
    probes = select(PROBES).where(*which).order_by(PROBES.c.id)
    return probes.with_for_update(skip_locked=True, of=PROBES)


def lost_a_device() -> ColumnElement[bool]:
    """Whether an attempt of a probe ended so."""
    lost = (ATTEMPTS.c.probe_id == PROBES.c.id, ATTEMPTS.c.outcome == Outcome.DEVICE_LOST)
    return select(ATTEMPTS.c.id).where(*lost).exists()


def next_number(probe_id: ColumnElement[int]) -> ColumnElement[int]:
    """``number`` of a probe's next attempt."""
    tried = ATTEMPTS.alias("tried")
    count: ScalarSelect[int] = (
        select(func.count() + 1).where(tried.c.probe_id == probe_id).scalar_subquery()
    )
    return count.label("number")


@cache
def insert_attempt() -> Insert:
    """A new attempt, which runs."""
    return insert(ATTEMPTS).values(state=AttemptState.RUNNING, detail="")


@cache
def run_probe() -> Update:
    """Puts a probe to running."""
    return update(PROBES).where(PROBES.c.id == bindparam("probe")).values(state=ProbeState.RUNNING)


@cache
def note_worker() -> Update:
    """Notes who is at a study."""
    return update(STUDIES).where(STUDIES.c.id == bindparam("study"))


@cache
def by_key() -> Select[Any]:
    """The probe that was claimed by a key, and the attempt, while it runs."""
    mine = (ATTEMPTS.c.claim_key == bindparam("key"), ATTEMPTS.c.state == AttemptState.RUNNING)
    found = select(PROBES, ATTEMPTS.c.id.label("attempt_id"))
    return found.join(ATTEMPTS, ATTEMPTS.c.probe_id == PROBES.c.id).where(*mine)
