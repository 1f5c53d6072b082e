"""Entering planned probes, by compare-and-swap on the study's revision."""

from sqlalchemy.orm import Session

from tuner.measurement import Measurement, believable
from tuner.store import queue
from tuner.store.asking import unknown_study
from tuner.store.clock import clock
from tuner.store.rows import measurement_row, probe_of
from tuner.store.tables import ProbeRow, StudyRow
from tuner.study import OPEN, Probe, ProbeRequest, ProbeState


def enter_probe(
    session: Session,
    study_id: str,
    revision: int,
    request: ProbeRequest,
    memory_limit_bytes: int | None,
    known: Measurement | None = None,
) -> Probe | None:
    """Enter a probe that was planned at ``revision``; ``None`` when the study moved on.

    It is queued, or done when its measurement is ``known`` already.

    Raises:
        UsageError: there is no such study.
    """
    study = _planned_at(session, study_id, revision)
    if study is None:
        return None
    now = clock(session)
    row = ProbeRow(
        study_id=study_id,
        settings=str(request.settings),
        fidelity=request.fidelity,
        repetition=request.repetition,
        accumulation_counts=list(request.accumulation_counts),
        memory_limit_bytes=memory_limit_bytes,
        state=ProbeState.DONE if known else ProbeState.QUEUED,
        outcome=known and known.outcome,
        created_at=now,
        finished_at=now if known else None,
    )
    session.add(row)
    study.revision += 1
    session.flush()
    if known:
        session.add(measurement_row(study, row, None, known, now))
    told = {"outcome": str(known.outcome)} if known else {}
    queue.tell_probe(session, study_id, row, now, told)
    return probe_of(row, known and believable(known))


def _planned_at(session: Session, study_id: str, revision: int) -> StudyRow | None:
    """The study, locked, if it still stands where a probe was planned for it."""
    study = session.get(StudyRow, study_id, with_for_update=True)
    if study is None:
        raise unknown_study(session, study_id)
    return study if study.revision == revision and study.state in OPEN else None
