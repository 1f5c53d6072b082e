"""From rows to the domain's objects, and back."""

import json
import statistics
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, Text, select, type_coerce
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from tuner.errors import UnreadableStudyError, UsageError
from tuner.measurement import Measurement, believable
from tuner.settings import Settings, parse_settings
from tuner.store.attempts import fruitless_s
from tuner.store.calibrations import read_calibration
from tuner.store.clock import clock, iso
from tuner.store.tables import DryRunRow, MeasurementRow, ProbeRow, StudyRow
from tuner.store.verdicts import guards_of
from tuner.study import Probe, ProbeRequest, Question, Study, Terms

if TYPE_CHECKING:
    from tuner.dryrun import DryRun

FOUND = type_coerce(MeasurementRow.measurement, Text)
"""The column of what a probe found, as the text that it is kept as."""
OF_PROBE: tuple[InstrumentedAttribute[Any], ...] = (
    ProbeRow.id,
    ProbeRow.settings,
    ProbeRow.fidelity,
    ProbeRow.repetition,
    ProbeRow.accumulation_counts,
    ProbeRow.state,
    ProbeRow.memory_limit_bytes,
    ProbeRow.finished_at,
)
"""The columns that :func:`probe_of` reads; rows of them are quicker to have than whole objects."""
MOST_KEPT = 16_000
"""Letters of a measurement that is kept as it was read; logs of many ranks are larger."""


def read_study(session: Session, row: StudyRow) -> Study:
    """The whole study, in four queries more, and another one for dry runs that it names.

    The row is read first: should a probe change between the two, the revision is the older one,
    and a plan made from it is not entered.

    Raises:
        UnreadableStudyError: it was written by a version whose questions this one cannot read.
    """
    found = session.execute(
        select(*OF_PROBE, FOUND.label("found"))
        .outerjoin(MeasurementRow, MeasurementRow.probe_id == ProbeRow.id)
        .where(ProbeRow.study_id == row.id)
        .order_by(ProbeRow.id)
    ).all()
    try:
        probes = tuple(probe_of(row, measurement_of(row.found)) for row in found)
        named = {p.measurement.dry_run for p in probes if p.measurement} - {""}
        study = study_of(row, probes, read_dry_runs(session, named))
        question = study.question
        now_s, before_s = fruitless_s(session, row)
        return replace(
            study,
            fruitless_s=now_s,
            fruitless_before_s=before_s,
            guards=guards_of(session, question),
            calibration=read_calibration(session, question.cluster, question.framework.versions),
        )
    except (UsageError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        text = f"study {row.id} cannot be read by this version: {reason}"
        raise UnreadableStudyError(text) from error


def read_dry_runs(session: Session, keys: Collection[str]) -> "dict[str, DryRun]":
    """The dry runs of these keys that are kept, by key; none for one of another format."""
    if not keys:
        return {}
    from tuner.dryrun import DryRun

    rows = session.scalars(select(DryRunRow).where(DryRunRow.key.in_(sorted(keys))))
    found = {}
    for row in rows:
        with suppress(ValueError, KeyError, TypeError):  # another version's: it is made anew
            found[row.key] = DryRun.from_dict(row.record)
    return found


def keep_dry_run(session: Session, dry_run: "DryRun") -> None:
    """Keep a dry run. The first of a key stays, unless it had failed or cannot be read."""
    row = session.get(DryRunRow, dry_run.key, with_for_update=True)
    if row is None:
        row = DryRunRow(key=dry_run.key, record=dry_run.as_dict(), created_at=clock(session))
        with suppress(IntegrityError), session.begin_nested():  # another was quicker
            session.add(row)
    elif row.key not in read_dry_runs(session, [row.key]) or row.record.get("error"):
        row.record, row.created_at = dry_run.as_dict(), clock(session)


def study_of(row: StudyRow, probes: tuple[Probe, ...], dry_runs: "dict[str, DryRun]") -> Study:
    """A study with these probes and dry runs."""
    return Study(
        id=row.id,
        question=Question.from_dict(row.question),
        terms=Terms.from_dict(row.terms),
        state=row.state,
        reason=row.reason,
        revision=row.revision,
        seed=row.seed,
        probes_before=row.probes_before,
        guard_s=row.guard_s,
        guard_before_s=row.guard_before_s,
        probes=probes,
        dry_runs=dry_runs,
        created_at=iso(row.created_at) or "",
        asked_at=iso(row.asked_at) or "",
    )


def probe_of(row: ProbeRow | Row[*tuple[Any, ...]], measurement: Measurement | None) -> Probe:
    """A probe with what it found."""
    return Probe(
        id=row.id,
        request=ProbeRequest(
            settings=_settings_of(row.settings),
            fidelity=row.fidelity,
            repetition=row.repetition,
            accumulation_counts=tuple(row.accumulation_counts),
        ),
        state=row.state,
        memory_limit_bytes=row.memory_limit_bytes,
        measurement=measurement,
        finished_at=iso(row.finished_at),
    )


def measurement_of(text: str | None) -> Measurement | None:
    """What a probe found, from :data:`FOUND`; ``None`` where there is nothing.

    A study is read again whenever something happens to it, and what its probes found stays the
    same: they are as they were read before, unless they are large.
    """
    if text is None:
        return None
    return _kept(text) if len(text) <= MOST_KEPT else _read(text)


@lru_cache(maxsize=2048)
def _kept(text: str) -> Measurement:
    return _read(text)


def _read(text: str) -> Measurement:
    return believable(Measurement.from_dict(json.loads(text)))


@lru_cache(maxsize=4096)
def _settings_of(text: str) -> Settings:
    return parse_settings(text)


def measurement_row(
    study: StudyRow, probe: ProbeRow, attempt_id: int | None, found: Measurement, now: datetime
) -> MeasurementRow:
    """The row of a measurement."""
    memory = found.memory
    count = max(found.step_times_s, default=0)
    times = found.step_times_s.get(count, ())
    step_time_s = statistics.median(times) if times else None
    return MeasurementRow(
        probe_id=probe.id,
        attempt_id=attempt_id,
        outcome=found.outcome,
        allocated_bytes=memory and memory.allocated_bytes,
        reserved_bytes=memory and memory.reserved_bytes,
        device_bytes=memory and memory.device_bytes,
        step_time_s=step_time_s,
        tokens_per_s=_tokens(study, probe, count) / step_time_s if step_time_s else None,
        wall_s=found.wall_s,
        device_s=found.device_s,
        measurement=found.as_dict(),
        recorded_at=now,
    )


def _tokens(study: StudyRow, probe: ProbeRow, count: int) -> float:
    """Tokens of a step of ``count`` micro-batches: that share of a whole optimizer step's."""
    workload = study.question["workload"]
    whole = workload["sequence_length"] * workload["global_batch_size"]
    return float(whole * count / _settings_of(probe.settings).gradient_accumulation_steps)
