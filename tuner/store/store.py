"""The store: studies, their probes and the queue, in one database.

Each method is one short transaction of its own, and any number of processes and threads may call
them at once. Methods raise :class:`tuner.errors.StoreError` when the database fails, and
:class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration
from tuner.measurement import Fidelity, Measurement
from tuner.store import migrate, queue
from tuner.store.asking import ask, named_study, unknown_study
from tuner.store.calibrations import keep_calibration, read_calibration
from tuner.store.claims import claim
from tuner.store.clock import clock
from tuner.store.engine import default_url, is_sqlite, make_engine, parse_url
from tuner.store.entering import enter_probe
from tuner.store.events import read_events, read_latest_events
from tuner.store.identity import WorkerIdentity
from tuner.store.listing import Position, count_open, read_open, read_page
from tuner.store.records import LEASE_S, Claim, Event, OpenStudy, StudySummary, Wanted
from tuner.store.rows import keep_dry_run, read_dry_runs
from tuner.store.similar import MOST_SIMILAR, read_study_with_past, similar_studies
from tuner.store.tables import StudyRow
from tuner.store.transactions import Transactions
from tuner.store.verdicts import guards_of, keep_verdict, read_verdicts
from tuner.study import (
    OPEN,
    STUDY_TRANSITIONS,
    Probe,
    ProbeRequest,
    Question,
    Study,
    StudyState,
    Terms,
)

if TYPE_CHECKING:
    from tuner.dryrun import DryRun
    from tuner.guard.verdict import Verdict


def open_store(url: str | None = None, *, create: bool = True, lease_s: float = LEASE_S) -> "Store":
    """Opens a database, the default one unless ``url`` names another.

    A SQLite file is made, with its folder, when absent, and migrated when it is of an earlier
    version. Any other database must be at this version's schema already.

    Args:
        url: ``sqlite:///path/to/file.db`` or ``postgresql://user@host/database``.
        create: whether an absent SQLite file is made.
        lease_s: seconds for which a claim or a beat gives a worker its probe; the same for all
            who use the database.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours, or is absent.
        StoreError: it cannot be reached, is of a newer version, or is not migrated.
    """
    parsed = parse_url(url if url is not None else default_url())
    if is_sqlite(parsed):
        path = str(parsed.database)
        migrate.make_file(path) if create else migrate.require_file(path)
    engine = make_engine(parsed)
    try:
        migrate.prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, lease_s)


class Store:
    """An open database, at this version's schema. A context manager; see :func:`open_store`."""

    def __init__(self, engine: Engine, lease_s: float = LEASE_S) -> None:
        self.transactions = Transactions(engine)
        """For what has tables of its own beside studies and probes."""
        self.lease_s = lease_s
        """Seconds for which a claim or a beat gives a worker its probe."""

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
        queued, unless a worker is at it. On other terms than before, what is queued is withdrawn:
        it was planned on the old ones.
        """
        self.reap()  # a study that runs after it has a live worker
        with self.transactions.write() as session:
            return read_study_with_past(session, ask(session, question, terms))

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
            return read_page(session, limit=limit)

    def page(
        self,
        *,
        before: Position | None = None,
        limit: int = 50,
        state: StudyState | None = None,
        query: str = "",
        model: str = "",
    ) -> list[StudySummary]:
        """Studies, those asked last first; see :func:`tuner.store.listing.read_page`.

        Args:
            before: ``asked_at`` and ``id`` of the last study of the page before this one.
            limit: most studies.
            state: only studies in this state.
            query: only studies with this in their id, or in the name of their model or cluster.
            model: only studies of the model of exactly this name.
        """
        wanted: dict[str, Any] = {"state": state, "query": query, "model": model}
        with self.transactions.read() as session:
            return read_page(session, before=before, limit=limit, **wanted)

    def open_studies(self, pools: Collection[str] = ()) -> list[OpenStudy]:
        """Studies not at their end, of no pool or one of ``pools``, those asked first first."""
        with self.transactions.read() as session:
            return read_open(session, pools)

    def count_open(self) -> int:
        """How many studies are not at their end."""
        with self.transactions.read() as session:
            return count_open(session)

    def move(
        self,
        study_id: str,
        to: StudyState,
        reason: str = "",
        *,
        expect: Collection[StudyState] | None = None,
        revision: int | None = None,
        worker: WorkerIdentity | None = None,
        also: Callable[[Session], None] = lambda session: None,
    ) -> bool:
        """Moves a study to another state; at its end, what is still queued is withdrawn.

        Args:
            study_id: the whole id.
            to: the state to move to.
            reason: why, in one line.
            expect: states from which alone to move; all that :data:`STUDY_TRANSITIONS` allows
                unless given.
            revision: the revision at which this was decided, if another one must prevent it: a
                study that was asked again meanwhile is not done.
            worker: who is at it from now on, when it moves to running.
            also: writes more in the same transaction, if it moves.

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
            if to not in OPEN:
                queue.withdraw(session, study, f"the study is {to}", now)
            queue.move_study(session, study, to, reason, now)
            if to is StudyState.RUNNING:
                study.worker = worker.as_dict() if worker else None
                study.worker_seen_at = now
            also(session)
            return True

    def events(self, study_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """What happened to a study since the event ``after``, oldest first, ``limit`` at most."""
        with self.transactions.read() as session:
            return read_events(session, study_id, after, limit)

    def latest_events(self, study_id: str, most: int) -> list[Event]:
        """The ``most`` newest things that happened to a study, oldest first."""
        with self.transactions.read() as session:
            return read_latest_events(session, study_id, most)

    # Probes

    def enter_probe(
        self, study_id: str, revision: int, request: ProbeRequest, memory_limit_bytes: int | None
    ) -> Probe | None:
        """Queues a probe that was planned at ``revision``; ``None`` when the study moved on."""
        with self.transactions.write() as session:
            return enter_probe(session, study_id, revision, request, memory_limit_bytes)

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
        planned = (study_id, revision, request, memory_limit_bytes)
        with self.transactions.write() as session:
            return enter_probe(session, *planned, measurement)

    def claim(
        self,
        study_id: str,
        worker: WorkerIdentity,
        fidelity: Fidelity | None = None,
        devices: Collection[str] = (),
        *,
        key: str = "",
    ) -> Claim | None:
        """Takes the study's oldest queued probe, for :attr:`lease_s` seconds, and its devices.

        Args:
            study_id: the whole id.
            worker: who takes it.
            fidelity: take only a probe of this one; of any unless given.
            devices: names of what it will run on, unique in the world: UUIDs of GPUs, or the id
                of a machine's boot before ``/cpu``. No other claim has any of them until this one
                ends. A probe that lost one of them is left to workers with none of those that were
                lost, or with none of all where it is not known which; after a lease's time in which
                nobody took it, it ends as ``device_lost``.
            key: 32 letters or digits of this claim alone: sent again with them, after an error
                that leaves open what became of it, it has the same probe.

        Returns:
            ``None`` when none is queued, or the study is at its end, or a device is held.
        """
        wanted = Wanted(
            study_id=study_id,
            worker=worker,
            fidelity=fidelity,
            devices=tuple(sorted(devices)),
            lease_s=self.lease_s,
            key=key or uuid4().hex,
        )
        return claim(self.transactions, wanted)

    def beat(self, claim: Claim) -> bool:
        """Extends the lease; ``False`` when it was lost, or the study is cancelled: stop then."""
        with self.transactions.write(durable=False) as session:
            return queue.beat(session, claim, self.lease_s)

    def record(self, claim: Claim, measurement: Measurement) -> bool:
        """Ends the probe with its measurement, or queues it again after what may be an accident
        (:data:`tuner.measurement.TRIED_AGAIN`).

        Returns:
            ``False``, and nothing is changed, when the claim was lost. Sent again, what was
            recorded is, and nothing more is changed.
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
                lost += queue.lose(session, attempt_id, self.lease_s)
        with self.transactions.read() as session:
            orphans = queue.orphans(session, self.lease_s)
        for orphan in orphans:
            with self.transactions.write() as session:
                queue.put_back(session, orphan, self.lease_s)
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

    def guards(self, question: Question) -> "dict[str, Verdict]":
        """The verdicts that may say something of a question's settings, by key."""
        with self.transactions.read() as session:
            return guards_of(session, question)

    def keep_verdict(self, verdict: "Verdict") -> None:
        """Keeps a verdict for all studies; one that was not reached replaces none that was."""
        with self.transactions.write() as session:
            keep_verdict(session, verdict)

    def add_guard_time(self, study_id: str, seconds: float) -> None:
        """Counts seconds in which small twins were trained for a study."""
        with self.transactions.write() as session:
            queue.locked_study(session, study_id).guard_s += seconds

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
