"""What attempts have cost that left no result."""

from datetime import datetime, timedelta
from math import fsum

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.store.records import LEASE_S, AttemptState
from tuner.store.tables import AttemptRow, MeasurementRow, ProbeRow, StudyRow
from tuner.study import Terms


def fruitless_s(session: Session, study: StudyRow) -> tuple[float, float]:
    """Seconds of a study's attempts that no measurement comes from: latest asking, earlier ones.

    They were given back, lost, or ended in an accident after which the probe was tried again; at
    the fidelity that is asked for. A lost one counts until the last sign of its worker.
    """
    rows = session.scalars(
        select(AttemptRow)
        .join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
        .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
        .where(
            ProbeRow.study_id == study.id,
            ProbeRow.fidelity == Terms.from_dict(study.terms).fidelity,
            AttemptRow.state != AttemptState.RUNNING,
            (MeasurementRow.attempt_id.is_(None)) | (AttemptRow.state == AttemptState.LOST),
        )
    )
    taken = [
        (row.started_at >= study.asked_at, max(0.0, (_end(row) - row.started_at).total_seconds()))
        for row in rows
    ]
    now, before = (fsum(s for is_now, s in taken if is_now is wanted) for wanted in (True, False))
    return now, before


def _end(row: AttemptRow) -> datetime:
    assert row.ended_at is not None, row.id
    if row.state is not AttemptState.LOST:
        return row.ended_at
    return min(row.ended_at, row.lease_until - timedelta(seconds=LEASE_S))
