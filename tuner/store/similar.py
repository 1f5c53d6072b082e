"""Earlier studies that may teach something of a question: the same stack, on such a cluster."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.errors import UsageError
from tuner.measurement import PROBED
from tuner.store.rows import FOUND, measurement_of, probe_of, read_study, study_of
from tuner.store.tables import MeasurementRow, ProbeRow, StudyRow
from tuner.study import Probe, ProbeState, Question, Study

MOST_SIMILAR = 20
"""Earlier studies that a study is read with."""
MOST_PROBES = 300
"""Probes that they have together, the newest ones; a search looks at no more."""


def read_study_with_past(session: Session, row: StudyRow) -> Study:
    """The whole study, with earlier ones that may teach something of it: two queries more.

    Raises:
        UnreadableStudyError: as :func:`tuner.store.rows.read_study`.
    """
    study = read_study(session, row)
    return replace(study, past=similar_studies(session, study.question))


def similar_studies(
    session: Session, question: Question, limit: int = MOST_SIMILAR
) -> tuple[Study, ...]:
    """Studies of other questions about the same stack and kind of cluster, those asked last first.

    They have their finished probes that ran steps, and nothing else. None is of another framework,
    other versions, another GPU, node or link, or another number format; the number of nodes, the
    workload and the knobs may differ. A study that this version cannot read is left out.

    Args:
        session: to read in.
        question: which is left out itself.
        limit: of studies.
    """
    rows = _akin(session, question, limit)
    probes = _probes(session, [row.id for row in rows])
    found = (_past_study(row, probes.get(row.id, ())) for row in rows)
    return tuple(study for study in found if study is not None and study.probes)


def _akin(session: Session, question: Question, limit: int) -> Sequence[StudyRow]:
    ran = (
        ProbeRow.study_id == StudyRow.id,
        ProbeRow.state == ProbeState.DONE,
        ProbeRow.fidelity.in_(PROBED),
    )
    same = StudyRow.kind == question.kind, StudyRow.identity != question.identity
    newest = (
        select(StudyRow)
        .where(*same, select(ProbeRow.id).where(*ran).exists())
        .order_by(StudyRow.asked_at.desc(), StudyRow.id)
        .limit(limit)
    )
    return session.scalars(newest).all()


def _probes(session: Session, study_ids: Sequence[str]) -> dict[str, list[Probe]]:
    """The newest finished probes of studies that ran steps, by study, oldest first."""
    if not study_ids:
        return {}
    found = session.execute(
        select(ProbeRow, FOUND)
        .join(MeasurementRow, MeasurementRow.probe_id == ProbeRow.id)
        .where(
            ProbeRow.study_id.in_(study_ids),
            ProbeRow.state == ProbeState.DONE,
            ProbeRow.fidelity.in_(PROBED),
        )
        .order_by(ProbeRow.id.desc())
        .limit(MOST_PROBES)
    ).all()
    by_study: dict[str, list[Probe]] = {}
    for row, text in reversed(found):
        with suppress(UsageError, KeyError, TypeError, ValueError):  # another version's
            probe = probe_of(row, measurement_of(text))
            by_study.setdefault(row.study_id, []).append(probe)
    return by_study


def _past_study(row: StudyRow, probes: Iterable[Probe]) -> Study | None:
    """A study with those of its probes whose times are of such devices."""
    own = tuple(probe for probe in probes if not _stands_in(probe))
    with suppress(UsageError, KeyError, TypeError, ValueError):  # another version's
        return study_of(row, own, {})
    return None


def _stands_in(probe: Probe) -> bool:
    """Whether it ran on a device of another kind than the cluster's."""
    emulation = probe.measurement.emulation if probe.measurement else None
    return emulation is not None and emulation.stands_in
