"""Verdicts of the guard: their rows, and those that a study is read with."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.guard.ruling import Ruling
from tuner.measurement import PROBED, Measurement, Outcome
from tuner.settings import Settings, parse_settings
from tuner.store.clock import clock, iso
from tuner.store.tables import GuardRow, ProbeRow
from tuner.study import Question

if TYPE_CHECKING:
    from tuner.guard.verdict import Verdict

MOST_PASSED = 100
"""Verdicts on other models' twins that passed, with which a study is read."""
MOST_STUDIES = 20
"""Other studies whose good probes are looked up, of those whose probes trained something else."""


def read_verdicts(session: Session, family: str | None = None) -> "dict[str, Verdict]":
    """The verdicts of a family, or of all, by key, oldest first; none of another format."""
    return _read(session, *([] if family is None else [GuardRow.family == family]))


def guards_of(session: Session, question: Question) -> "dict[str, Verdict]":
    """The verdicts that may say something of a question's settings, by key.

    They are those on its own model's twins, and all others in these versions that failed, with
    what passed beside them: what a knob does is no model's own. Of what else passed, they are the
    newest.
    """
    from tuner.guard.faults import bears_on
    from tuner.guard.twin import family_of

    family = family_of(question)
    found = read_verdicts(session, family) if family else {}
    failed = _read(session, GuardRow.ruling == Ruling.FAILED)
    failed = {key: one for key, one in failed.items() if bears_on(question, one)}
    beside = {one.family for one in failed.values()} - {family, ""}
    others = failed | _read(session, GuardRow.family.in_(sorted(beside))) if beside else failed
    others |= _read(session, GuardRow.ruling == Ruling.PASSED, most=MOST_PASSED)
    found |= {key: one for key, one in others.items() if bears_on(question, one)}
    return found | {one.key: one for one in _good_probes(session, failed.values())}


def keep_verdict(session: Session, verdict: "Verdict") -> None:
    """Keep a verdict in the place of an earlier one; one that was not reached replaces none."""
    row = session.get(GuardRow, verdict.key, with_for_update=True)
    undecided = Ruling.NOT_CHECKED
    if row is not None and verdict.ruling is undecided is not row.ruling:
        return
    now, record = clock(session), verdict.as_dict()
    if row is not None:
        row.ruling, row.record, row.created_at = verdict.ruling, record, now
        return
    new = GuardRow(
        key=verdict.key,
        family=verdict.family,
        ruling=verdict.ruling,
        record=record,
        created_at=now,
    )
    with suppress(IntegrityError), session.begin_nested():  # another was quicker
        session.add(new)


def keep_failure(
    session: Session, study_id: str, question: Question, settings: Settings, found: Measurement
) -> None:
    """Keep, for all studies, that a probe of one trained something else."""
    from tuner.guard.counts import blamed_by_counts
    from tuner.guard.twin import key_of_probe, stack_of
    from tuner.guard.verdict import Verdict

    ranks = question.cluster.world_size
    versions = stack_of({**question.framework.versions, **found.versions})
    verdict = Verdict(
        key=key_of_probe(study_id, question.program, settings, versions),
        family="",
        ruling=Ruling.FAILED,
        outcome=found.outcome,
        model_type=question.workload.model.model_type,
        detail=found.detail,
        structure=f"a probe of {study_id}",
        settings=settings.as_dict(),
        ranks=ranks,
        knob=blamed_by_counts(settings, ranks, found),
        versions=versions,
        program=question.program,
        study=study_id,
    )
    keep_verdict(session, verdict)


def _read(
    session: Session, *where: ColumnElement[bool], most: int | None = None
) -> "dict[str, Verdict]":
    """Verdicts by key, oldest first; with ``most``, the newest of them."""
    from tuner.guard.verdict import Verdict

    newest = (GuardRow.created_at.desc(), GuardRow.key.desc())
    rows = session.scalars(select(GuardRow).where(*where).order_by(*newest).limit(most)).all()
    found = {}
    for row in reversed(rows):
        with suppress(ValueError, KeyError, TypeError):  # another version's: it is found anew
            found[row.key] = replace(Verdict.from_dict(row.record), date=iso(row.created_at))
    return found


def _good_probes(session: Session, verdicts: "Iterable[Verdict]") -> "Iterator[Verdict]":
    """What passed in the studies whose probes failed: it tells a knob from a layout."""
    failed = {one.study: one for one in verdicts if one.study}
    latest = list(failed)[-MOST_STUDIES:]
    if not latest:
        return
    passed = (
        select(ProbeRow.study_id, ProbeRow.settings)
        .where(
            ProbeRow.study_id.in_(latest),
            ProbeRow.outcome == Outcome.OK,
            ProbeRow.fidelity.in_(PROBED),
        )
        .distinct()
        .order_by(ProbeRow.study_id, ProbeRow.settings)
    )
    for study_id, text in session.execute(passed):
        yield replace(
            failed[study_id],
            key=f"{study_id} {text}",
            ruling=Ruling.PASSED,
            outcome=Outcome.OK,
            detail="",
            knob="",
            settings=parse_settings(text).as_dict(),
        )
