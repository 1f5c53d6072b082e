"""The store: studies, asked, found, listed, moved and watched, with their probes."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Engine,
    Select,
    SQLColumnExpression,
    Text,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.orm import Session

from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import (
    OPEN,
    STUDY_TRANSITIONS,
    Limits,
    ProbeState,
    Question,
    Study,
    StudyState,
    read_labels,
)
from tuner.errors import UsageError
from tuner.store import migrate
from tuner.store.access import Action, Audit, AuditNote, add_audit
from tuner.store.caches import Caches
from tuner.store.engine import Transactions, default_url, is_sqlite, make_engine, parse_url
from tuner.store.queue import Queue, move_study, withdraw
from tuner.store.requests import ID_PREFIX, ask_question
from tuner.store.rows import (
    MOST_SIMILAR,
    Attempt,
    Event,
    Moments,
    add_event,
    locked_study,
    read_events,
    read_moments,
    read_study,
    read_wasted,
    similar_studies,
    unknown_study,
)
from tuner.store.tables import (
    AuditRow,
    EventKind,
    EventRow,
    ProbeRow,
    StudyRow,
    SummaryRow,
    clock,
    from_row,
    iso,
)
from tuner.store.workers import WorkerIdentity, read_silent, state_of

# A study's place in the list: the time when it was last asked, in ISO 8601, and its id.
Position = tuple[str, str]
# Old studies that are deleted in one transaction.
DELETED = 100


_NEWEST_EVENT = select(func.max(EventRow.id)).where(EventRow.study_id == StudyRow.id)
# What a list of studies can be sorted by. The answer's figures are unknown of some.
ORDERS: Mapping[str, SQLColumnExpression[Any]] = {
    "asked": StudyRow.asked_at,
    "model": StudyRow.model_name,
    "method": StudyRow.method,
    "batch": StudyRow.global_batch_size,
    "sequence": StudyRow.sequence_length,
    "cluster": StudyRow.cluster_name,
    "framework": StudyRow.framework,
    "fidelity": StudyRow.fidelity,
    "speed": SummaryRow.tokens_per_s,
    "memory": SummaryRow.needed_share,
    "state": StudyRow.state,
    "labels": cast(StudyRow.labels, Text),
}
# Characters of what people note about a study.
LONGEST_NOTES = 4000

# Made once: the poller asks it several times a second, and to build it takes longer than to run it.
_STATUSES = select(
    StudyRow.id,
    StudyRow.identity,
    StudyRow.state,
    StudyRow.reason,
    StudyRow.pool,
    StudyRow.revision,
    StudyRow.limits,
    StudyRow.asked_at,
    _NEWEST_EVENT.correlate(StudyRow).scalar_subquery().label("newest_event"),
)
_STATUSES_OF = _STATUSES.where(StudyRow.id.in_(bindparam("study_ids", expanding=True)))

# A running attempt is locked before its study, so none may be deleted with it.
_ENDED = StudyRow.state.not_in(OPEN) & ~exists().where(
    ProbeRow.study_id == StudyRow.id, ProbeRow.state == ProbeState.RUNNING
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    id: str
    model_name: str  # name of the model, as asked last; for a user's script the name of its file
    cluster_name: str
    state: StudyState
    reason: str
    probes: Mapping[Outcome, int]
    pool: str
    labels: Mapping[str, str]
    revision: int
    created_at: str
    asked_at: str
    method: str  # `full`, or an adapter's
    global_batch_size: int
    sequence_length: int
    framework: str
    fidelity: str
    has_ok: bool  # whether a probe of this fidelity is ok

    @property
    def shown_state(self) -> str:
        """The state as people read it, as far as outcomes tell without the answer."""
        ran = self.fidelity != Fidelity.PREDICTED
        is_unanswered = self.state is StudyState.DONE and ran and not self.has_ok
        return "no answer" if is_unanswered else str(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    """A study's row, and its newest event: when neither has changed, nothing of it has."""

    id: str
    identity: str
    state: StudyState
    reason: str
    pool: str
    revision: int
    limits: Mapping[str, Any]
    asked_at: str
    newest_event: int  # id of the last thing that happened to it


class Store(Queue, Caches):
    """An open database, at this version's schema. A context manager; see :func:`open_store`.

    Each method is one short transaction of its own, and any number of processes and threads may
    call them at once. Methods raise :class:`tuner.errors.StoreError` when the database fails, and
    :class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
    """

    def __init__(self, engine: Engine) -> None:
        self.transactions = Transactions(engine)

    @property
    def url(self) -> str:
        """The address, whole: a file's absolute path, or with the password."""
        return self.transactions.engine.url.render_as_string(hide_password=False)

    def close(self) -> None:
        self.transactions.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(
        self,
        question: Question,
        limits: Limits,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> Study:
        """Asks a question: a new study, or the same question's, with the new limits.

        Everything learned for it is kept, and counted in ``probes_before``. It is put back to
        queued, unless a worker is at it. With other limits than before, what is queued is
        withdrawn: it was planned with the old ones. ``labels`` are put on it beside those it has.
        """
        self.reap()  # a study that runs after it has a living worker
        with self.transactions.write() as session:
            return read_study(session, ask_question(session, question, limits, labels))

    def find(self, question: Question) -> Study | None:
        """The study of a question, if it was asked before."""
        with self.transactions.read() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.identity == question.identity))
            return read_study(session, row) if row else None

    def study(self, study_id: str) -> Study:
        """A study with its probes, by its id or by a beginning of it that no other has; the
        ``st-`` may be left out.
        """
        begin = study_id.strip().lower()
        begin = begin if begin.startswith(ID_PREFIX) else ID_PREFIX + begin
        with self.transactions.read() as session:
            if begin == ID_PREFIX:
                raise unknown_study(session, study_id)
            if (whole := session.get(StudyRow, begin)) is not None:
                return read_study(session, whole)
            # No index serves this: it is for people, and workers name studies whole.
            like = StudyRow.id.startswith(begin, autoescape=True)
            some = select(StudyRow).where(like).order_by(StudyRow.id).limit(5)
            rows = session.scalars(some).all()
            if not rows:
                raise unknown_study(session, study_id)
            if len(rows) > 1:
                ids = ", ".join(row.id for row in rows)
                raise UsageError("study", study_id, f"several begin so: {ids}")
            return read_study(session, rows[0])

    def similar(self, question: Question, limit: int = MOST_SIMILAR) -> tuple[Study, ...]:
        """Earlier studies that may teach something of a question, those asked last first.

        They are of the same stack and kind of cluster, with their finished probes that ran steps.
        """
        with self.transactions.read() as session:
            return similar_studies(session, question, limit)

    def studies(
        self,
        limit: int = 50,
        *,
        before: Position | None = None,
        offset: int = 0,
        order: str = "-asked",
        state: StudyState | None = None,
        query: str = "",
        labels: Mapping[str, str | None] = MappingProxyType({}),
    ) -> list[StudySummary]:
        """Studies, those asked last first, or in another of :data:`ORDERS`.

        Those asked last are read along an index, however far back the page is. Only words that few
        studies have, and other orders, make it look at many rows.

        Args:
            before: the place after which to go on: that of the last study of the page before.
            order: a key, after ``-`` from the largest first; what is unknown goes last.
            query: only studies with this in their id, in the name of their model or cluster, in
                their labels, or in what people noted.
            labels: only studies with all of these labels; of ``None``, whatever the value.
        """
        place = (StudyRow.asked_at, StudyRow.id)
        found = select(StudyRow)
        if before is not None:
            asked_at, last_id = before
            found = found.where(tuple_(*place) < (datetime.fromisoformat(asked_at), last_id))
        key = order.removeprefix("-")
        is_figure = key in ("speed", "memory")
        if is_figure:
            found = found.outerjoin(SummaryRow, SummaryRow.study_id == StudyRow.id)
        # The newest index serves one direction for both columns.
        last = StudyRow.id.asc() if order == "asked" else StudyRow.id.desc()
        others = [last] if key == "asked" else [StudyRow.asked_at.desc(), last]
        with self.transactions.read() as session:
            shown = _shown_state(session) if state or key == "state" else StudyRow.state
            by = shown if key == "state" else ORDERS[key]
            first = by.desc() if order.startswith("-") else by.asc()
            found = found.where(*_wanted(shown, state, query, labels)).order_by(
                first.nulls_last() if is_figure else first, *others
            )
            rows = session.scalars(found.offset(offset).limit(limit)).all()
            outcomes = (
                select(ProbeRow.study_id, ProbeRow.outcome, ProbeRow.fidelity, func.count())
                .where(ProbeRow.study_id.in_([row.id for row in rows]))
                .where(ProbeRow.outcome.is_not(None))
                .group_by(ProbeRow.study_id, ProbeRow.outcome, ProbeRow.fidelity)
                .order_by(ProbeRow.outcome)
            )
            counts: dict[str, Counter[Outcome]] = {row.id: Counter() for row in rows}
            ok: set[tuple[str, str]] = set()
            for owner, outcome, fidelity, count in session.execute(outcomes):
                assert outcome is not None
                counts[owner][outcome] += count
                if outcome is Outcome.OK:
                    ok.add((owner, fidelity))
            silent = read_silent(session, rows)
            return [
                from_row(
                    StudySummary,
                    row,
                    probes=counts[row.id],
                    has_ok=(row.id, row.fidelity) in ok,
                    **state_of(row, silent),
                )
                for row in rows
            ]

    def count_studies(self, *, state: StudyState | None = None, query: str = "") -> int:
        """The number of studies that :meth:`studies` would list."""
        with self.transactions.read() as session:
            shown = _shown_state(session) if state else StudyRow.state
            wanted = _wanted(shown, state, query, {})
            return session.scalar(select(func.count()).select_from(StudyRow).where(*wanted)) or 0

    def notes(self, study_id: str) -> str:
        with self.transactions.read() as session:
            return session.scalar(select(StudyRow.notes).where(StudyRow.id == study_id)) or ""

    def open_studies(self, pools: Collection[str] = ()) -> list[StudyStatus]:
        """Studies not at their end, of no pool or one of ``pools``, those asked first first."""
        wanted = (StudyRow.state.in_(OPEN), StudyRow.pool.in_({"", *pools}))
        oldest = _STATUSES.where(*wanted).order_by(StudyRow.asked_at, StudyRow.id)
        with self.transactions.read() as session:
            return list(_read_statuses(session, oldest).values())

    def count_open(self, actor: str | None = None) -> int:
        """The number of studies that are not at their end; of one actor's, as the audit has them.

        An actor's studies are looked for among what was noted since the oldest of the open ones
        was asked; what was pruned from the audit counts no more.
        """
        is_open = StudyRow.state.in_(OPEN)
        wanted = select(func.count(StudyRow.id.distinct())).where(is_open)
        if actor is not None:
            since = select(func.min(StudyRow.asked_at)).where(is_open).scalar_subquery()
            wanted = wanted.join(AuditRow, AuditRow.study_id == StudyRow.id).where(
                AuditRow.actor == actor, AuditRow.action == str(Action.SUBMIT), AuditRow.at >= since
            )
        with self.transactions.read() as session:
            return session.scalar(wanted) or 0

    def move(
        self,
        study_id: str,
        to: StudyState,
        reason: str = "",
        *,
        expect: Collection[StudyState] | None = None,
        revision: int | None = None,
        worker: WorkerIdentity | None = None,
        note: AuditNote | None = None,
    ) -> bool:
        """Moves a study to another state; at its end, what is still queued is withdrawn.

        ``expect`` are states from which alone to move, ``revision`` that at which this was decided,
        if another one must prevent it: a study that was asked again meanwhile is not done.
        ``False`` when its state, or its revision, prevents it.
        """
        with self.transactions.write() as session:
            study = locked_study(session, study_id)
            if to not in STUDY_TRANSITIONS[study.state]:
                return False
            if expect is not None and study.state not in expect:
                return False
            if revision is not None and study.revision != revision:
                return False
            now = clock(session)
            if to not in OPEN:
                withdraw(session, study, f"the study is {to}", now)
            move_study(session, study, to, reason, now)
            if to is StudyState.RUNNING:
                study.worker = worker.as_dict() if worker else None
                study.worker_seen_at = now
            add_audit(session, note, study_id)
            return True

    def label(
        self,
        study_id: str,
        changes: Mapping[str, str | None],
        note: AuditNote | None = None,
        *,
        notes: str | None = None,
    ) -> None:
        """Puts labels on a study beside those it has, in whatever state it is; ``None`` takes one
        off. ``notes`` are written in the place of the earlier ones.

        Raises:
            UsageError: there is no such study, or a label is not allowed, or there are too many.
        """
        with self.transactions.write() as session:
            study = locked_study(session, study_id)
            both = {**study.labels, **changes}
            kept = {name: text for name, text in both.items() if text is not None}
            labels = read_labels("labels", kept)
            notes = study.notes if notes is None else notes
            if len(notes) > LONGEST_NOTES:
                allowed = f"must have {LONGEST_NOTES} characters at most"
                raise UsageError("notes", notes, allowed)
            if (labels, notes) == (study.labels, study.notes):
                return
            study.labels, study.notes = labels, notes
            add_event(session, study_id, EventKind.LABELS, clock(session), {"labels": labels})
            add_audit(session, note, study_id)

    def delete(self, study_id: str, note: AuditNote | None = None) -> bool:
        """Deletes a study that is at its end, with its probes and events; ``False`` while it is
        not, or a worker still ends a probe of it. What all studies use stays: dry runs, checks and
        calibrations, and the audit."""
        with self.transactions.write() as session:
            locked_study(session, study_id)  # from now on none of its probes is claimed
            if session.scalar(select(StudyRow.id).where(StudyRow.id == study_id, _ENDED)) is None:
                return False
            session.execute(delete(StudyRow).where(StudyRow.id == study_id))
            add_audit(session, note, study_id)
            return True

    def prune(self, age: timedelta, by: str) -> tuple[int, int]:
        """Deletes studies at their end that were asked longer ago, and older entries of the audit;
        how many of each. ``by`` is who did it, for the audit."""
        with self.transactions.read() as session:
            before = clock(session) - age
        old = select(StudyRow.id).where(StudyRow.asked_at < before, _ENDED)
        oldest = old.order_by(StudyRow.asked_at).limit(DELETED).with_for_update()
        note = AuditNote(actor=by, action=Action.DELETE, data={"before": iso(before)})
        deleted = 0
        while True:  # a few at a time, so that others can write between two of them
            with self.transactions.write() as session:
                ids = session.scalars(oldest).all()
                session.execute(delete(StudyRow).where(StudyRow.id.in_(ids)))
                for study_id in ids:
                    add_audit(session, note, study_id)
            deleted += len(ids)
            if len(ids) < DELETED:
                return deleted, Audit(self.transactions).prune(before, by)

    def add_guard_time(self, study_id: str, seconds: float) -> None:
        """Counts seconds in which replicas were trained for a study, while it is open: what a
        worker did after its end is not part of what the answer cost."""
        with self.transactions.write() as session:
            study = locked_study(session, study_id)
            study.guard_s += seconds if study.state in OPEN else 0.0

    def tell(self, study_id: str, doing: str, *, waits: WorkerIdentity | None = None) -> None:
        """Says what a running study is at, beside its probes, for whoever follows it: its reason
        while it runs. Its plans stay what they are.

        What a worker ``waits`` for is not said of a study that another one is at.
        """
        with self.transactions.write() as session:
            study = locked_study(session, study_id)
            if waits is not None and study.worker not in (None, waits.as_dict()):
                other = WorkerIdentity.from_dict(study.worker)
                if other.is_alive() is not False:
                    return
            if study.state is StudyState.RUNNING and study.reason != doing:
                move_study(session, study, StudyState.RUNNING, doing, clock(session))

    def neighbours(self, study_id: str, host: str) -> list[str]:
        """The ids of other studies whose probes run on a machine now."""
        running = exists().where(
            ProbeRow.study_id == StudyRow.id, ProbeRow.state == ProbeState.RUNNING
        )
        wanted = select(StudyRow.id, StudyRow.worker).where(running, StudyRow.id != study_id)
        with self.transactions.read() as session:
            found = session.execute(wanted.order_by(StudyRow.id)).all()
        return [one.id for one in found if one.worker and one.worker.get("host") == host]

    def statuses(self, study_ids: Collection[str]) -> dict[str, StudyStatus]:
        """The statuses of studies, by id; those that do not exist are left out.

        One query, which reads no probe: cheap enough to be asked several times a second.
        """
        if not study_ids:
            return {}
        with self.transactions.read() as session:
            return _read_statuses(session, _STATUSES_OF, {"study_ids": sorted(study_ids)})

    def status(self, study_id: str) -> StudyStatus | None:
        """The status of one study; ``None`` when there is none of this id."""
        return self.statuses([study_id]).get(study_id)

    def changes(
        self, known: Mapping[str, tuple[int, StudyState, str]], limit: int
    ) -> dict[str, tuple[StudyStatus, list[Event]]]:
        """Studies to which something happened, with their status and the events that led to it;
        ``known`` is the id of the newest event that is known of each study, and its state with
        the reason, which a worker's silence changes without an event."""
        found = {}
        with self.transactions.read() as session:
            statuses = _read_statuses(session, _STATUSES_OF, {"study_ids": sorted(known)})
            for study_id, status in statuses.items():
                newest, *stands = known[study_id]
                if status.newest_event > newest or [status.state, status.reason] != stands:
                    events = read_events(session, study_id, newest, limit)
                    # What happens between the two queries is left for the next look.
                    until = [event for event in events if event.id <= status.newest_event]
                    found[study_id] = status, until
        return found

    def events(self, study_id: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """The events of a study since the event ``after``, oldest first, at most ``limit``."""
        with self.transactions.read() as session:
            return read_events(session, study_id, after, limit)

    def wasted(self, study_id: str) -> dict[int, tuple[Attempt, ...]]:
        """The attempts of a study's probes of which nothing came, by the probes' numbers."""
        with self.transactions.read() as session:
            return read_wasted(session, study_id)

    def moments(self, study: Study) -> Moments:
        """When a study ended; or when what runs of it began, as far as that was read with it."""
        if study.state in OPEN and all(p.state is not ProbeState.RUNNING for p in study.probes):
            return Moments()
        with self.transactions.read() as session:
            return read_moments(session, study)


def _shown_state(session: Session) -> SQLColumnExpression[StudyState]:
    """The state of a study as it is shown: queued if its worker has left it."""
    # Few studies run at once, and whether a process is gone is not known to the database.
    left = [study_id for study_id, one in read_silent(session).items() if one.has_left]
    if not left:
        return StudyRow.state  # as mostly, and by its index
    queued = literal(StudyState.QUEUED, StudyRow.state.type)
    return case((StudyRow.id.in_(left), queued), else_=StudyRow.state)


def _wanted(
    shown: SQLColumnExpression[StudyState],
    state: StudyState | None,
    query: str,
    labels: Mapping[str, str | None],
) -> list[ColumnElement[bool]]:
    wanted = [shown == state] if state else []
    if query:
        of = StudyRow
        # JSON escapes what is not ASCII, which a name may have.
        name = of.labels["name"].as_string()
        texts = (of.id, of.model_name, of.cluster_name, cast(of.labels, Text), name, of.notes)
        wanted.append(or_(*(text.icontains(query, autoescape=True) for text in texts)))
    for name, text in labels.items():
        kept = StudyRow.labels[name].as_string()
        wanted.append(kept.is_not(None) if text is None else kept == text)
    return wanted


def _read_statuses(
    session: Session, wanted: Select[Any], values: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, StudyStatus]:
    rows = session.execute(wanted, values).all()
    silent = read_silent(session, rows)
    return {
        row.id: from_row(
            StudyStatus, row, newest_event=row.newest_event or 0, **state_of(row, silent)
        )
        for row in rows
    }


def why_kept(study_id: str, state: StudyState) -> str:
    """Why :meth:`Store.delete` refused to delete a study."""
    if state in OPEN:
        return f"study {study_id} is {state}: cancel it first"
    return f"study {study_id} is {state}, but a worker is still ending a probe of it: try again"


def open_store(
    url: str | None = None, *, create: bool = True, patience_s: float | None = None
) -> Store:
    """Opens a database, the default one unless ``url`` names another.

    A SQLite file is made, with its folder, when absent, and migrated when it is of an earlier
    version. Any other database must be at this version's schema already.

    Args:
        create: false to refuse a SQLite file that is absent.
        patience_s: for which writers of SQLite wait for the one before them.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours, or is absent.
        StoreError: it cannot be reached, is of a newer version, from before the first release, or
            not migrated.
    """
    parsed = parse_url(url if url is not None else default_url())
    if is_sqlite(parsed):
        path = str(parsed.database)
        migrate.make_file(path) if create else migrate.require_file(path)
    engine = make_engine(parsed, patience_s)
    try:
        migrate.prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)
