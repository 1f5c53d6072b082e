"""The queue of probes: who may run one, for how long, and what becomes of it."""

# Rows are locked in one order, attempt, probe, study, so that no two transactions wait for each
# other; SQLite locks everything. A claim locks its study first, and then writes an attempt that
# nobody else can know of yet. An attempt's end deletes its devices' rows when it has all its locks:
# a claim that must wait for one of them waits for nobody who waits for it.
#
# A commit whose answer is lost, because the server or the network fails at that moment, may have
# been made. A record and what is given back are known by their attempt when they are sent again. An
# attempt whose worker never learned of it is lost when its lease runs out.

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.core import lease
from tuner.core.configuration import parse_settings
from tuner.core.measurement import (
    TRAINS_WRONGLY,
    TRIED_AGAIN,
    Fidelity,
    Measurement,
    Outcome,
    believable,
)
from tuner.core.study import (
    OPEN,
    PROBE_TRANSITIONS,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    StudyState,
)
from tuner.store.caches import keep_failure
from tuner.store.claims import (
    COME_TO_STUDY,
    HOLD_DEVICES,
    RUN,
    Claim,
    attempt_oldest,
    claim_at_once,
)
from tuner.store.engine import Transactions, one_line
from tuner.store.rows import add_event, locked_study, measurement_row, probe_of
from tuner.store.tables import (
    AttemptRow,
    AttemptState,
    DeviceRow,
    EventKind,
    MeasurementRow,
    ProbeRow,
    StudyRow,
    clock,
)
from tuner.store.workers import WorkerIdentity, read_silent

# Lost workers after which a probe is closed: it may be what kills them.
MOST_LOSSES = 3
# Characters of a study's reason, which may name all settings of a configuration.
LONGEST_REASON = 500


class Queue:
    """The probes of a database that are queued or running. Each method is one transaction."""

    transactions: Transactions

    def enter_probe(
        self,
        study_id: str,
        revision: int,
        request: ProbeRequest,
        memory_limit_bytes: int | None = None,
        measurement: Measurement | None = None,
    ) -> Probe | None:
        """Enters a probe that was planned at ``revision``; ``None`` when the study moved on.

        With a ``measurement``, which a kept dry run has, it is done at once.
        """
        with self.transactions.write() as session:
            study = locked_study(session, study_id)
            if study.revision != revision or study.state not in OPEN:
                return None
            now = clock(session)
            # The study is locked, so no other probe is given the same number.
            is_dry = request.fidelity is Fidelity.PREDICTED
            last = func.min(ProbeRow.number) if is_dry else func.max(ProbeRow.number)
            of_study = select(last).where(ProbeRow.study_id == study_id)
            found = session.scalar(of_study) or 0
            probe = ProbeRow(
                study_id=study_id,
                number=min(found, 0) - 1 if is_dry else max(found, 0) + 1,
                settings=str(request.settings),
                fidelity=request.fidelity,
                repetition=request.repetition,
                accumulation_counts=list(request.accumulation_counts),
                memory_limit_bytes=memory_limit_bytes,
                state=ProbeState.DONE if measurement else ProbeState.QUEUED,
                outcome=measurement and measurement.outcome,
                created_at=now,
                finished_at=now if measurement else None,
            )
            session.add(probe)
            study.revision += 1
            session.flush()
            data: dict[str, Any] = {}
            if measurement:
                row = measurement_row(study, probe, None, measurement, now)
                session.add(row)
                data = {"outcome": str(measurement.outcome), **_figures(row)}
            _tell(session, probe, now, data)
            return probe_of(probe, measurement and believable(measurement))

    def claim(
        self,
        study_id: str,
        worker: WorkerIdentity,
        fidelity: Fidelity | None = None,
        devices: Collection[str] = (),
    ) -> Claim | None:
        """Claims the study's oldest queued probe, and the devices to run it on; ``None`` when none
        is queued, or the study is at its end, or a device is held.

        Args:
            devices: names of what it will run on, unique in the world: UUIDs of GPUs, or the id
                of a machine's boot before ``/cpu``. No other claim has any of them until this one
                ends. A probe that lost one of them is left to workers with none of those that were
                lost, or with none of all where it is not known which; after a lease's time in which
                nobody took it, it ends as ``device_lost``.
        """
        wanted = sorted(set(devices))  # so that no two claims wait for each other
        try:
            if self.transactions.takes_messages:
                usual, is_unusual = claim_at_once(
                    self.transactions, study_id, worker, fidelity, wanted
                )
                if not is_unusual:
                    return usual
            made, lost_id = self._claim(study_id, worker, fidelity, wanted)
        except IntegrityError:
            # The study is locked, so only a device can be another's: its row is there already.
            if not devices:
                raise
            return None
        if made is not None:
            probe = replace(probe_of(made, None), state=ProbeState.RUNNING)
            return Claim(attempt_id=made.attempt, study_id=study_id, probe=probe, worker=worker)
        if lost_id is not None:  # it is queued, and nobody with other devices has taken it
            with self.transactions.write() as session:
                attempt = _locked(session, lost_id)
                assert attempt is not None, lost_id
                row, study = _probe_and_study(session, attempt)
                if row.state is ProbeState.QUEUED:
                    found = Measurement(outcome=Outcome.DEVICE_LOST, detail=attempt.detail)
                    study.revision += 1
                    now = clock(session)
                    _finish(session, study, row, found, now, attempt, is_its_result=False)
        return None

    def _claim(
        self, study_id: str, worker: WorkerIdentity, fidelity: Fidelity | None, devices: list[str]
    ) -> tuple[Row[Any] | None, int | None]:
        """Claims as :meth:`claim` does; what is returned :func:`attempt_oldest` says."""
        by = worker.as_dict()
        # Not durable: a power cut ends the worker too.
        with self.transactions.write_rows() as connection:
            # The lock comes first: whoever ends the study finds each probe claimed, or queued.
            at_it = {"study": study_id, "by": by}
            if (come := connection.execute(COME_TO_STUDY, at_it).first()) is None:
                return None, None
            made, lost_id = attempt_oldest(connection, study_id, fidelity, by, devices, come.now)
            if made is None:
                connection.rollback()  # the worker is not at this study
                return None, lost_id
            if come.state is not StudyState.RUNNING:
                with Session(connection) as session, session.begin():
                    study = session.get_one(StudyRow, study_id)
                    move_study(session, study, StudyState.RUNNING, "", come.now)
            connection.execute(RUN, {"probe": made.id})
            if devices:
                held = [{"device": one, "attempt_id": made.attempt} for one in devices]
                connection.execute(HOLD_DEVICES, held)
            running = {"state": str(ProbeState.RUNNING), "attempt": made.attempt_number}
            _tell(connection, made, come.now, {**running, "worker": worker.name})
            return made, None

    def beat(self, claim: Claim) -> bool:
        """Extends the lease; ``False`` when it was lost, or the study is cancelled: stop then."""
        with self.transactions.write(durable=False) as session:
            attempt = _locked(session, claim.attempt_id)
            if attempt is None or attempt.state is not AttemptState.RUNNING:
                return False
            attempt.lease_until = clock(session) + timedelta(seconds=lease.LEASE_S)
            state = session.scalar(select(StudyRow.state).where(StudyRow.id == claim.study_id))
            return state is not StudyState.CANCELLED

    def record(self, claim: Claim, measurement: Measurement) -> bool:
        """Ends the probe with its measurement, or queues it again after what may be an accident
        (:data:`tuner.core.measurement.TRIED_AGAIN`).

        Returns:
            ``False``, and nothing is changed, when the claim was lost. Sent again, what was
            recorded is, and nothing more is changed.
        """
        found = believable(measurement)
        with self.transactions.write() as session:
            attempt = _locked(session, claim.attempt_id)
            if attempt is None or attempt.state is not AttemptState.RUNNING:
                return attempt is not None and _was_recorded(session, attempt, found)
            probe, study = _probe_and_study(session, attempt)
            now = clock(session)
            attempt.outcome = found.outcome
            if lost := set(found.lost_devices) & set(attempt.devices):
                attempt.devices = sorted(lost)  # the others may be used again
            _end_attempt(session, attempt, AttemptState.DONE, found.detail, now)
            study.revision += 1
            study.worker_seen_at = now
            same = _count(session, probe, AttemptRow.outcome == found.outcome)
            if same <= TRIED_AGAIN.get(found.outcome, 0) and study.state in OPEN:
                data = {"outcome": str(found.outcome), "detail": one_line(found.detail)}
                _move_probe(session, probe, ProbeState.QUEUED, now, data, attempt)
                return True
            _finish(session, study, probe, found, now, attempt)
            if found.outcome in TRAINS_WRONGLY:
                question, tried = Question.from_dict(study.question), parse_settings(probe.settings)
                keep_failure(session, study.id, question, tried, found)
            return True

    def give_back(self, claim: Claim, why: str) -> bool:
        """Queues the probe again, without counting this attempt; ``False`` as in :meth:`record`."""
        with self.transactions.write() as session:
            attempt = _locked(session, claim.attempt_id)
            if attempt is None or attempt.state is not AttemptState.RUNNING:
                return attempt is not None and attempt.state is AttemptState.GIVEN_BACK
            probe, study = _probe_and_study(session, attempt)
            now = clock(session)
            _end_attempt(session, attempt, AttemptState.GIVEN_BACK, why, now)
            study.worker_seen_at = now
            _queue_again(session, study, probe, attempt, why, now)
            return True

    def reap(self) -> int:
        """Takes probes from workers that are lost, and puts studies without a worker to queued.

        A worker is lost when its lease ran out, or when it ran on this machine and its process
        is gone. A probe that lost :data:`MOST_LOSSES` workers ends as ``worker_lost``. The number
        of attempts that were lost is returned.
        """
        running = select(AttemptRow).where(AttemptRow.state == AttemptState.RUNNING)
        with self.transactions.read() as session:
            now = clock(session)
            rows = session.scalars(running)
            suspects = [row.id for row in rows if row.lease_until <= now or _is_gone(row.worker)]
        lost = 0
        for attempt_id in suspects:  # one transaction each: locks are taken in one order
            with self.transactions.write() as session:
                lost += _lose(session, attempt_id)
        with self.transactions.read() as session:
            at_work = select(StudyRow).where(StudyRow.state == StudyState.RUNNING)
            orphans = [row.id for row in session.scalars(at_work) if _is_orphan(session, row)]
        for study_id in orphans:
            with self.transactions.write() as session:
                study = locked_study(session, study_id)
                if study.state is StudyState.RUNNING and _is_orphan(session, study):
                    gone = "its worker is gone"
                    move_study(session, study, StudyState.QUEUED, gone, clock(session))
        return lost


def _lose(session: Session, attempt_id: int) -> bool:
    """Takes the probe from a worker that is still suspect, now that its row is locked."""
    attempt = _locked(session, attempt_id)
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return False
    gone = _is_gone(attempt.worker)
    if not gone and attempt.lease_until > clock(session):
        return False
    probe, study = _probe_and_study(session, attempt)
    now = clock(session)
    why = "its worker is gone" if gone else f"no sign of its worker for {lease.LEASE_S:g} s"
    _end_attempt(session, attempt, AttemptState.LOST, why, now)
    study.revision += 1
    if _count(session, probe, AttemptRow.state == AttemptState.LOST) < MOST_LOSSES:
        _queue_again(session, study, probe, attempt, why, now)
        return True
    why = f"its worker was lost {MOST_LOSSES} times"
    found = Measurement(outcome=Outcome.WORKER_LOST, detail=why)
    _finish(session, study, probe, found, now, attempt)
    return True


def _is_gone(worker: Mapping[str, Any]) -> bool:
    return WorkerIdentity.from_dict(worker).is_alive() is False


def _is_orphan(session: Session, study: StudyRow) -> bool:
    """True for a running study that no worker is at, nor has one of its probes."""
    held = (ProbeRow.state == ProbeState.RUNNING, ProbeRow.study_id == study.id)
    if session.scalar(select(ProbeRow.id).where(*held).limit(1)):
        return False
    silent = read_silent(session, [study]).get(study.id)
    return silent is not None and silent.has_left


def withdraw(session: Session, study: StudyRow, why: str, now: datetime) -> None:
    """Takes the queued probes of a study, whose row is locked, off the queue.

    One that was tried is kept as cancelled, so that the cost of its attempts stays known.
    """
    queued = (ProbeRow.study_id == study.id, ProbeRow.state == ProbeState.QUEUED)
    for probe in session.scalars(select(ProbeRow).where(*queued).with_for_update()).all():
        if _count(session, probe) == 0:
            _tell(session, probe, now, {"state": "withdrawn"})
            session.delete(probe)
        else:
            found = Measurement(outcome=Outcome.CANCELLED, detail=one_line(why))
            # Names no attempt: that would lock an attempt after its study.
            _finish(session, study, probe, found, now, None)


def move_study(
    session: Session, study: StudyRow, to: StudyState, reason: str, now: datetime
) -> None:
    """Changes the state of a study whose row is locked, and adds the event."""
    reason = one_line(reason, LONGEST_REASON)
    data = {"before": str(study.state), "state": str(to), "reason": reason}
    study.state, study.reason = to, reason
    if to is not StudyState.RUNNING:
        study.worker = study.worker_seen_at = None
    add_event(session, study.id, EventKind.STUDY, now, data)


def _tell(
    session: Session | Connection,
    probe: ProbeRow | Row[Any],
    now: datetime,
    data: Mapping[str, Any],
) -> None:
    """Adds the event of a probe that moved; its study's row is locked."""
    which = {
        "number": probe.number,
        "settings": probe.settings,
        "repetition": probe.repetition,
        "fidelity": str(probe.fidelity),
        "state": str(probe.state),
    }
    add_event(session, probe.study_id, EventKind.PROBE, now, {**which, **data})


def _figures(row: MeasurementRow) -> dict[str, float]:
    """The figures of a result, as far as it has any; those of a dry run are predicted."""
    names = ("allocated_bytes", "step_time_s", "tokens_per_s")
    return {name: value for name in names if (value := getattr(row, name)) is not None}


def _move_probe(
    session: Session,
    probe: ProbeRow,
    to: ProbeState,
    now: datetime,
    data: Mapping[str, Any],
    attempt: AttemptRow | None,
) -> None:
    assert to in PROBE_TRANSITIONS[probe.state], (probe.state, to)
    probe.state = to
    _tell(session, probe, now, {**({"attempt": attempt.number} if attempt else {}), **data})


def _queue_again(
    session: Session, study: StudyRow, probe: ProbeRow, attempt: AttemptRow, why: str, now: datetime
) -> None:
    """Queues a probe again, unless its study has ended: then nobody would run it."""
    if study.state in OPEN:
        data = {"detail": one_line(why)}
        _move_probe(session, probe, ProbeState.QUEUED, now, data, attempt)
        return
    # The result is of no attempt, as what this one has cost came to nothing.
    found = Measurement(outcome=Outcome.CANCELLED, detail=one_line(why))
    _finish(session, study, probe, found, now, attempt, is_its_result=False)


def _finish(
    session: Session,
    study: StudyRow,
    probe: ProbeRow,
    found: Measurement,
    now: datetime,
    attempt: AttemptRow | None,
    *,
    is_its_result: bool = True,
) -> None:
    """Ends a probe with its result, which names the attempt that it comes from."""
    probe.outcome, probe.finished_at = found.outcome, now
    source = attempt.id if attempt and is_its_result else None
    row = measurement_row(study, probe, source, found, now)
    session.add(row)
    data = {"outcome": str(found.outcome), "detail": one_line(found.detail), **_figures(row)}
    _move_probe(session, probe, ProbeState.DONE, now, data, attempt)


def _end_attempt(
    session: Session, attempt: AttemptRow, state: AttemptState, why: str, now: datetime
) -> None:
    """Ends a running attempt, and lets others have its devices."""
    attempt.state, attempt.detail, attempt.ended_at = state, one_line(why), now
    session.execute(delete(DeviceRow).where(DeviceRow.attempt_id == attempt.id))


def _locked(session: Session, attempt_id: int) -> AttemptRow | None:
    """The fence: an attempt, locked, whose state its worker's writes depend on."""
    return session.get(AttemptRow, attempt_id, with_for_update=True)


def _probe_and_study(session: Session, attempt: AttemptRow) -> tuple[ProbeRow, StudyRow]:
    probe = session.get_one(ProbeRow, attempt.probe_id, with_for_update=True)
    return probe, locked_study(session, probe.study_id)


def _count(session: Session, probe: ProbeRow, *where: ColumnElement[bool]) -> int:
    attempts = select(func.count()).where(AttemptRow.probe_id == probe.id, *where)
    return session.scalar(attempts) or 0


def _was_recorded(session: Session, attempt: AttemptRow, found: Measurement) -> bool:
    """True if the attempt ended with this: its worker did not hear that it was recorded.

    An accident after which the probe is tried again leaves no more than its outcome.
    """
    kept = session.scalar(
        select(MeasurementRow.measurement).where(MeasurementRow.attempt_id == attempt.id)
    )
    if kept is not None and json.dumps(kept) != json.dumps(found.as_dict()):  # NaN is NaN
        return False
    return (attempt.outcome, attempt.detail) == (found.outcome, one_line(found.detail))
