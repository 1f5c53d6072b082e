"""Results that are kept for all studies: dry runs, checks of the guard, calibrations; and the
answer of each study in one line, so that a list of them computes none.

Records that another version wrote in another form count as none: they are made anew.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, case, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import PROBED, CheckState, Measurement, Outcome
from tuner.core.study import Question
from tuner.store.engine import Transactions
from tuner.store.tables import (
    Base,
    CalibrationRow,
    CheckRow,
    DryRunRow,
    ProbeRow,
    SummaryRow,
    UtcNow,
    clock,
    iso,
)

if TYPE_CHECKING:
    from tuner.cost.calibration import Calibration
    from tuner.dryrun import DryRun
    from tuner.guard.check import GuardCheck

log = logging.getLogger(__name__)

# Passed checks of other models' replicas with which a study is read.
MOST_PASSED = 100
# Studies with probes that trained something else, whose good probes are read too.
MOST_STUDIES = 20
# Calibrations that are read until one is of this version's format.
MOST_CALIBRATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSummary:
    """The answer of a study in one line, as plain values."""

    content: Mapping[str, Any]
    newest_event: int
    """Id of the study's newest event before it was made; newer ones may have changed it."""


class Caches:
    """The results that a database keeps for all studies. Each method is one transaction."""

    transactions: Transactions

    def dry_runs(self, keys: Collection[str]) -> "dict[str, DryRun]":
        with self.transactions.read() as session:
            return read_dry_runs(session, keys)

    def keep_dry_run(self, dry_run: "DryRun") -> None:
        """Keeps a dry run. The first of a key stays, unless it had failed or cannot be read."""
        with self.transactions.write() as session:
            now, record = clock(session), dry_run.as_dict()
            row = session.get(DryRunRow, dry_run.key, with_for_update=True)
            if row is None:
                _add_first(session, DryRunRow(key=dry_run.key, record=record, created_at=now))
            elif not read_dry_runs(session, [row.key]) or row.record.get("error"):
                row.record, row.created_at = record, now

    def checks(self, family: str | None = None) -> "dict[str, GuardCheck]":
        where = [] if family is None else [CheckRow.family == family]
        with self.transactions.read() as session:
            return _read_checks(session, *where)

    def guards(self, question: Question) -> "dict[str, GuardCheck]":
        """The checks that bear on a question's configurations, by key."""
        with self.transactions.read() as session:
            return read_checks_for(session, question)

    def keep_check(self, check: "GuardCheck") -> None:
        """Keeps a check; one without a result replaces none that has one."""
        with self.transactions.write() as session:
            _keep_check(session, check)

    def calibration(self, cluster: Cluster, versions: Mapping[str, str]) -> "Calibration | None":
        """The newest rates that were measured on devices like the cluster's.

        Those of a cluster of the same size go before newer ones of another.
        """
        with self.transactions.read() as session:
            return read_calibration(session, cluster, versions)

    def keep_calibration(self, calibration: "Calibration") -> None:
        with self.transactions.write() as session:
            row = CalibrationRow(
                hardware=calibration.hardware,
                torch=calibration.torch,
                nodes=calibration.nodes,
                gpus_per_node=calibration.gpus_per_node,
                record=calibration.as_dict(),
                created_at=clock(session),
            )
            session.add(row)

    def summaries(self, study_ids: Collection[str]) -> dict[str, StoredSummary]:
        """The summaries of studies, by id; those without one are left out."""
        if not study_ids:
            return {}
        wanted = select(SummaryRow).where(SummaryRow.study_id.in_(sorted(study_ids)))
        with self.transactions.read() as session:
            return {
                row.study_id: StoredSummary(content=row.content, newest_event=row.newest_event)
                for row in session.scalars(wanted)
            }

    def keep_summary(
        self,
        study_id: str,
        content: Mapping[str, Any],
        newest_event: int,
        *,
        tokens_per_s: float | None = None,
        needed_share: float | None = None,
    ) -> bool:
        """Keeps a study's answer in one line in the place of an earlier one.

        ``newest_event`` is of before the answer was computed; lists are sorted by the tokens per
        second and rank, and by the needed share of the limit. ``False``, and nothing is written,
        where the same is kept already, or one that is made of more, or the study is gone.
        """

        with self.transactions.read() as session:
            kept = session.get(SummaryRow, study_id)
            if kept and kept.newest_event > newest_event:
                return False
            if kept and (kept.newest_event, kept.content) == (newest_event, content):
                return False
        made = {
            "newest_event": newest_event,
            "content": dict(content),
            "made_at": UtcNow(),
            "tokens_per_s": tokens_per_s,
            "needed_share": needed_share,
        }
        earlier = (SummaryRow.study_id == study_id, SummaryRow.newest_event <= newest_event)
        # Not durable: an answer that is lost in a power cut is computed again.
        with self.transactions.write_if_free() as session:
            replace_it = update(SummaryRow).where(*earlier).values(made)
            if session.scalar(replace_it.returning(SummaryRow.study_id)) is not None:
                return True
            return _add_first(session, SummaryRow(study_id=study_id, **made))


def _add_first(session: Session, row: Base) -> bool:
    """Adds a row; ``False`` when another was quicker, or what it belongs to is gone."""
    with suppress(IntegrityError), session.begin_nested():
        session.add(row)
        session.flush()
        return True
    return False


def read_dry_runs(session: Session, keys: Collection[str]) -> "dict[str, DryRun]":
    if not keys:
        return {}
    from tuner.dryrun import DryRun

    found = {}
    for row in session.scalars(select(DryRunRow).where(DryRunRow.key.in_(sorted(keys)))):
        with suppress(ValueError, KeyError, TypeError):  # another version's
            found[row.key] = DryRun.from_dict(row.record)
    return found


def read_checks_for(session: Session, question: Question) -> "dict[str, GuardCheck]":
    """The checks that bear on a question's configurations, by key.

    They are those of its own model's replicas, and all others in these versions that failed, with
    what passed beside them: what a knob does is no model's own. Of what else passed, they are the
    newest.
    """
    from tuner.guard.faults import bears_on
    from tuner.guard.replica import family_of

    family = family_of(question)
    found = _read_checks(session, CheckRow.family == family) if family else {}
    failed = _read_checks(session, CheckRow.result == CheckState.FAILED)
    failed = {key: one for key, one in failed.items() if bears_on(question, one)}
    others = dict(failed)
    if beside := {one.family for one in failed.values()} - {family, ""}:
        others |= _read_checks(session, CheckRow.family.in_(sorted(beside)))
    others |= _read_checks(session, CheckRow.result == CheckState.PASSED, most=MOST_PASSED)
    found |= {key: one for key, one in others.items() if bears_on(question, one)}
    return found | {one.key: one for one in _good_probes(session, failed.values())}


def keep_failure(
    session: Session, study_id: str, question: Question, settings: Settings, found: Measurement
) -> None:
    """Keeps, for all studies, that a probe of one trained something else."""
    from tuner.guard.check import GuardCheck
    from tuner.guard.faults import blamed_by_counts
    from tuner.guard.replica import key_of_probe, stack_of

    ranks = question.cluster.world_size
    versions = stack_of({**question.framework.versions, **found.versions}, question.workload)
    check = GuardCheck(
        key=key_of_probe(study_id, question.program, settings, versions),
        family="",
        result=CheckState.FAILED,
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
    _keep_check(session, check)


def read_calibration(
    session: Session, cluster: Cluster, versions: Mapping[str, str]
) -> "Calibration | None":
    from tuner.cost.calibration import Calibration, hardware_key

    like = [CalibrationRow.hardware == hardware_key(cluster)]
    if torch := versions.get("torch"):
        like.append(CalibrationRow.torch == torch)
    same_node = CalibrationRow.gpus_per_node == cluster.gpus_per_node
    same_size = same_node & (CalibrationRow.nodes == cluster.nodes)
    nearest = case((same_size, 0), (same_node, 1), else_=2)
    wanted = select(CalibrationRow).where(*like).order_by(nearest, CalibrationRow.id.desc())
    rows = session.scalars(wanted.limit(MOST_CALIBRATIONS)).all()
    for row in rows:
        with suppress(ValueError, KeyError, TypeError):  # another version's
            return Calibration.from_dict(row.record)
    if rows:
        _warn_once(cluster.gpu.name)
    return None


@cache
def _warn_once(name: str) -> None:
    # Once for each device: a study is read often.
    log.warning(
        "the rates of %s were measured by another version and are not used: run tuner calibrate",
        name,
    )


def _keep_check(session: Session, check: "GuardCheck") -> None:
    row = session.get(CheckRow, check.key, with_for_update=True)
    if row is not None and check.result is CheckState.NOT_CHECKED is not row.result:
        return
    now, record = clock(session), check.as_dict()
    if row is not None:
        row.result, row.record, row.created_at = check.result, record, now
        return
    made = {"result": check.result, "record": record, "created_at": now}
    _add_first(session, CheckRow(key=check.key, family=check.family, **made))


def _read_checks(
    session: Session, *where: ColumnElement[bool], most: int | None = None
) -> "dict[str, GuardCheck]":
    """Checks by key, oldest first; with ``most``, the newest of them."""
    from tuner.guard.check import GuardCheck

    newest = (CheckRow.created_at.desc(), CheckRow.key.desc())
    rows = session.scalars(select(CheckRow).where(*where).order_by(*newest).limit(most)).all()
    found = {}
    for row in reversed(rows):
        with suppress(ValueError, KeyError, TypeError):  # another version's
            found[row.key] = replace(GuardCheck.from_dict(row.record), date=iso(row.created_at))
    return found


def _good_probes(session: Session, checks: "Iterable[GuardCheck]") -> "Iterator[GuardCheck]":
    """Probes that passed in the studies whose probes failed: they tell a knob from a layout."""
    failed = {one.study: one for one in checks if one.study}
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
            result=CheckState.PASSED,
            outcome=Outcome.OK,
            detail="",
            knob="",
            settings=parse_settings(text).as_dict(),
        )
