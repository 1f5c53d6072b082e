"""The store: studies, their probes and the queue, in one database.

Each method is one short transaction of its own, and any number of processes and threads may call
them at once. Methods raise :class:`tuner.errors.StoreError` when the database fails, and
:class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Self

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration
from tuner.measurement import Fidelity, Measurement
from tuner.store import migrate, queue
from tuner.store.asking import asked_study, named_study, renew, unknown_study
from tuner.store.calibrations import keep_calibration, read_calibration
from tuner.store.clock import clock
from tuner.store.engine import (
    default_url,
    is_sqlite,
    make_engine,
    parse_url,
)
from tuner.store.identity import WorkerIdentity
from tuner.store.records import Claim, Event, EventKind, StudySummary
from tuner.store.rows import (
    add_event,
    event_of,
    keep_dry_run,
    measurement_row,
    probe_of,
    read_dry_runs,
    read_summaries,
)
from tuner.store.similar import MOST_SIMILAR, read_study_with_past, similar_studies
from tuner.store.tables import EventRow, ProbeRow, StudyRow
from tuner.store.transactions import Transactions
from tuner.store.verdicts import keep_verdict, read_verdicts
from tuner.study import (
    STUDY_TRANSITIONS,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
    Terms,
)

if TYPE_CHECKING:
    from tuner.dryrun import DryRun
    from tuner.guard.verdict import Verdict


def open_store(url: str | None = None, *, create: bool = True) -> "Store":
    """Opens a database, the default one unless ``url`` names another.

    A SQLite file is made, with its folder, when absent, and migrated when it is of an earlier
    version. Any other database must be at this version's schema already.

    Args:
        url: ``sqlite:///path/to/file.db`` or ``postgresql://user@host/database``.
        create: whether an absent SQLite file is made.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours, or is absent.
        StoreError: it cannot be reached, is of a newer version, or is not migrated.
    """
    parsed = parse_url(url if url is not None else default_url())
    if is_sqlite(parsed):
        path = str(parsed.database)
        migrate.make_folder(path) if create else migrate.require_file(path)
    engine = make_engine(parsed)
    try:
        migrate.prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)


class Store:
    """An open database, at this version's schema. A context manager; see :func:`open_store`."""

    def __init__(self, engine: Engine) -> None:
        self.transactions = Transactions(engine)
        """For what has tables of its own beside studies and probes."""

    @property
    def url(self) -> str:
        """The address, whole: a file's absolute path, or with the password."""
        return self.transactions.engine.url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Closes all connections."""
        self.transactions.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Studies

    def ask(self, question: Question, terms: Terms) -> Study:
        """Asks a question: a new study, or the same question's, on the new terms.

        Everything learned for it is kept, and counted in ``probes_before``. It is put back to
        queued, unless a worker is at it. Probes that were planned and never tried are withdrawn:
        they were planned on the old terms.
        """
        self.reap()
        with self.transactions.write() as session:
            study, new = asked_study(session, question, terms)
            now = clock(session)
            if not new:
                renew(session, study, question, terms, now)
            study.revision += 1
            data = {"again": not new, "terms": terms.as_dict()}
            add_event(session, study, EventKind.ASKED, now, data)
            # A study that runs after reap() has a live worker.
            if study.state not in queue.OPEN:
                queue.move_study(session, study, StudyState.QUEUED, "", now)
            session.flush()
            return read_study_with_past(session, study)

    def find(self, question: Question) -> Study | None:
        """The study of a question, if it was asked before."""
        with self.transactions.read() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.identity == question.identity))
            return read_study_with_past(session, row) if row else None

    def study(self, study_id: str) -> Study:
        """A study with its probes, by its id or by a beginning of it that no other has.

        Raises:
            UsageError: there is none, or several.
        """
        with self.transactions.read() as session:
            return read_study_with_past(session, named_study(session, study_id))

    def similar(self, question: Question, limit: int = MOST_SIMILAR) -> tuple[Study, ...]:
        """Earlier studies that may teach something of a question, those asked last first.

        They are of the same stack and kind of cluster, with their finished probes that ran steps.
        """
        with self.transactions.read() as session:
            return similar_studies(session, question, limit)

    def studies(self, limit: int = 50) -> list[StudySummary]:
        """The studies that were asked last, newest first."""
        with self.transactions.read() as session:
            return read_summaries(session, limit)

    def move(
        self,
        study_id: str,
        to: StudyState,
        reason: str = "",
        *,
        expect: Collection[StudyState] | None = None,
        revision: int | None = None,
        worker: WorkerIdentity | None = None,
    ) -> bool:
        """Moves a study to another state.

        Args:
            study_id: the whole id.
            to: the state to move to.
            reason: why, in one line.
            expect: states from which alone to move; all that :data:`STUDY_TRANSITIONS` allows
                unless given.
            revision: the revision at which this was decided, if another one must prevent it: a
                study that was asked again meanwhile is not done.
            worker: who is at it from now on, when it moves to running.

        Returns:
            Whether it moved; ``False`` when it stands somewhere else.

        Raises:
            UsageError: there is no such study.
        """
        with self.transactions.write() as session:
            study = session.get(StudyRow, study_id, with_for_update=True)
            if study is None:
                raise unknown_study(session, study_id)
            if to not in STUDY_TRANSITIONS[study.state]:
                return False
            if expect is not None and study.state not in expect:
                return False
            if revision is not None and study.revision != revision:
                return False
            now = clock(session)
            queue.move_study(session, study, to, reason, now)
            if to is StudyState.RUNNING:
                study.worker = worker.as_dict() if worker else None
                study.worker_seen_at = now
            return True

    def events(self, study_id: str, after: int = 0) -> list[Event]:
        """What happened to a study since the event ``after``, oldest first."""
        newer = (EventRow.study_id == study_id, EventRow.id > after)
        with self.transactions.read() as session:
            rows = session.scalars(select(EventRow).where(*newer).order_by(EventRow.id))
            return [event_of(row) for row in rows]

    # Probes

    def enter_probe(
        self, study_id: str, revision: int, request: ProbeRequest, memory_limit_bytes: int | None
    ) -> Probe | None:
        """Queues a probe that was planned at ``revision``; ``None`` when the study moved on."""
        with self.transactions.write() as session:
            study = _planned_at(session, study_id, revision)
            if study is None:
                return None
            now = clock(session)
            row = _queued_probe(study_id, request, memory_limit_bytes, now)
            session.add(row)
            study.revision += 1
            session.flush()
            queue.tell_probe(session, study, row, now, {})
            return probe_of(row, None)

    def enter_done(
        self,
        study_id: str,
        revision: int,
        request: ProbeRequest,
        measurement: Measurement,
        memory_limit_bytes: int | None = None,
    ) -> Probe | None:
        """Enters a probe with a result that is known already; ``None`` when the study moved on.

        Args:
            study_id: the whole id.
            revision: of the study for which the probe was planned.
            request: the probe, which the study must not have yet.
            measurement: its result, from a dry run that is kept.
            memory_limit_bytes: the limit of the study's terms.
        """
        with self.transactions.write() as session:
            study = _planned_at(session, study_id, revision)
            if study is None:
                return None
            now = clock(session)
            row = _queued_probe(study_id, request, memory_limit_bytes, now)
            row.state, row.outcome, row.finished_at = ProbeState.DONE, measurement.outcome, now
            session.add(row)
            study.revision += 1
            session.flush()
            session.add(measurement_row(study, row, None, measurement, now))
            queue.tell_probe(session, study, row, now, {"outcome": str(measurement.outcome)})
            return probe_of(row, measurement.as_dict())

    def claim(
        self, study_id: str, worker: WorkerIdentity, fidelity: Fidelity | None = None
    ) -> Claim | None:
        """Takes the study's oldest queued probe, for :data:`tuner.store.LEASE_S` seconds.

        Args:
            study_id: the whole id.
            worker: who takes it.
            fidelity: take only a probe of this one; of any unless given.

        Returns:
            ``None`` when none is queued, or the study is at its end.
        """
        with self.transactions.write() as session:
            return queue.claim(session, study_id, worker, fidelity)

    def beat(self, claim: Claim) -> bool:
        """Extends the lease; ``False`` when it was lost, or the study is cancelled: stop then."""
        with self.transactions.write() as session:
            return queue.beat(session, claim)

    def record(self, claim: Claim, measurement: Measurement) -> bool:
        """Ends the probe with its measurement, or queues it again after what may be an accident
        (:data:`tuner.measurement.TRIED_AGAIN`).

        Returns:
            ``False``, and nothing is changed, when the claim was lost.
        """
        with self.transactions.write() as session:
            return queue.record(session, claim, measurement)

    def give_back(self, claim: Claim, why: str) -> bool:
        """Queues the probe again, without counting this attempt; ``False`` as in ``record``."""
        with self.transactions.write() as session:
            return queue.give_back(session, claim, why)

    def reap(self) -> int:
        """Takes probes from workers that are lost, and puts studies without a worker to queued.

        A worker is lost when its lease ran out, or when it ran on this machine and its process
        is gone. A probe that lost :data:`queue.MOST_LOSSES` workers ends as ``worker_lost``.

        Returns:
            How many attempts were lost.
        """
        with self.transactions.read() as session:
            suspects = queue.suspects(session)
        lost = 0
        for attempt_id in suspects:  # one transaction each: locks are taken in one order
            with self.transactions.write() as session:
                lost += queue.lose(session, attempt_id)
        with self.transactions.read() as session:
            orphans = queue.orphans(session)
        for orphan in orphans:
            with self.transactions.write() as session:
                queue.put_back(session, orphan)
        return lost

    # Dry runs

    def dry_runs(self, keys: Collection[str]) -> "dict[str, DryRun]":
        """The dry runs of these keys that are kept, by key."""
        with self.transactions.read() as session:
            return read_dry_runs(session, keys)

    def keep_dry_run(self, dry_run: "DryRun") -> None:
        """Keeps a dry run for all studies. The first of a key stays, unless it had failed."""
        with self.transactions.write() as session:
            keep_dry_run(session, dry_run)

    # Verdicts of the guard

    def verdicts(self, family: str | None = None) -> "dict[str, Verdict]":
        """The verdicts of one family, or of all, by key, oldest first."""
        with self.transactions.read() as session:
            return read_verdicts(session, family)

    def keep_verdict(self, verdict: "Verdict") -> None:
        """Keeps a verdict for all studies; one that was not reached replaces none that was."""
        with self.transactions.write() as session:
            keep_verdict(session, verdict)

    # Calibrations

    def calibration(self, cluster: Cluster, versions: Mapping[str, str]) -> Calibration | None:
        """The newest rates that were measured on devices like the cluster's.

        Those of a cluster of the same size go before newer ones of another.

        Args:
            cluster: whose rates are wanted.
            versions: of packages; rates are of a release of torch, where it is stated.
        """
        with self.transactions.read() as session:
            return read_calibration(session, cluster, versions)

    def keep_calibration(self, calibration: Calibration) -> None:
        """Keeps rates for all studies on such devices."""
        with self.transactions.write() as session:
            keep_calibration(session, calibration)


def _planned_at(session: Session, study_id: str, revision: int) -> StudyRow | None:
    """The study, locked, if it still stands where a probe was planned for it."""
    study = session.get(StudyRow, study_id, with_for_update=True)
    if study is None:
        raise unknown_study(session, study_id)
    return study if study.revision == revision and study.state in queue.OPEN else None


def _queued_probe(
    study_id: str, request: ProbeRequest, memory_limit_bytes: int | None, now: datetime
) -> ProbeRow:
    return ProbeRow(
        study_id=study_id,
        settings=str(request.settings),
        fidelity=request.fidelity,
        repetition=request.repetition,
        accumulation_counts=list(request.accumulation_counts),
        memory_limit_bytes=memory_limit_bytes,
        state=ProbeState.QUEUED,
        created_at=now,
    )
