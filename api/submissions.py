"""Questions that come in: read, placed, and asked, unless they are answered already."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from threading import Lock
from typing import Any

from api.answers import OLDEST_S, Answers, Body
from api.problems import ProblemCode, ProblemError, unknown_study
from tuner.client.advance import advance_from_cache, conclude
from tuner.client.from_file import left_out, read_tune
from tuner.client.place import Placed, place
from tuner.client.request import TuneRequest
from tuner.core.measurement import Fidelity
from tuner.core.study import OPEN, Limits, StudyState
from tuner.errors import OtherLimitsError, StoreError
from tuner.planner.dry_runs import as_predicted
from tuner.store import Store, StudyStatus, study_id
from tuner.store.access import LOCAL, Action, Audit, AuditNote
from tuner.store.requests import RequestKey, Requests, body_hash
from tuner.store.workers import RegisteredWorker, Workers

log = logging.getLogger("api.submissions")

# Seconds after which to ask again while too many studies are open.
ROOM_RETRY_S = 60
# Seconds for which the list of living workers is kept.
LIVING_S = 1.0
# Seconds after which the same question is placed anew, when nothing else is computed: calibrations
# may come.
PLACED_S = 10.0
# Questions that are kept placed.
MOST_PLACED = 500
# Keys and studies of which it is remembered that a joining was noted.
MOST_NOTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A question that was taken."""

    body: Body
    notes: tuple[str, ...]
    """Decisions that were left open, with their reasons."""
    left_out: Mapping[str, list[Any]] | None
    """Of a question that a file says: see :func:`tuner.client.from_file.left_out`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A question that is placed, with the names that follow from it."""

    placed: Placed
    study_id: str
    identity: str
    left_out: Mapping[str, list[Any]] | None


class Submissions:
    """Takes questions for one database. Safe to use from any thread."""

    def __init__(
        self,
        store: Store,
        answers: Answers,
        most_open: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_each: int | None = None,
    ) -> None:
        """``most_open`` studies may be open before new ones are refused, and ``most_each`` of them
        may be one key's; by default half."""
        self._store = store
        self._answers = answers
        self._most_open = most_open
        self._most_each = max(1, most_open // 2) if most_each is None else most_each
        self._clock = clock
        self._requests = Requests(store.transactions)
        self._workers = Workers(store.transactions)
        self._audit = Audit(store.transactions)
        self._lock = Lock()
        self._living: dict[str, tuple[float, list[RegisteredWorker]]] = {}
        self._placed: OrderedDict[str, tuple[float, _Named]] = OrderedDict()
        self._noted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def submit(self, value: object, *, owner: str, key: str | None, address: str = "") -> Submitted:
        """Asks the question of a request, unless it is being answered, or was, within its limits.

        The audit notes who asked, in the transaction that asks; and the first time in this process
        that a key is answered by a study that it need not ask.

        ``value`` is the request's body, ``owner`` the id of the key to the service (empty where
        none is needed), ``key`` the sender's own word for this request. Where something about it is
        wrong, nothing was written.
        """
        asked = body_hash(value)
        request_key = None if key is None else RequestKey(owner=owner, key=key, body_hash=asked)
        request, said, beside = read_tune(value)
        known = self._requests.answered(request_key) if request_key else None
        # The study that it asked when it came first, if that still is within its limits.
        if known and (first := self._store.status(known)):
            limits = request.limits_at(request.fidelity or Fidelity(first.limits["fidelity"]))
            again = self._within_limits(first, limits)
            self._note_joined(owner, known, address)
            left = None if beside is None else self._place(request, asked, beside).left_out
            return Submitted(body=again, notes=said, left_out=left)
        named = self._place(request, asked, beside)
        status = self._store.status(named.study_id)
        if status is not None and status.identity != named.identity:
            status = None  # which the store refuses
        placed = _joining(request, named.placed, status)
        if status is not None and (body := self._as_it_stands(status, placed, request.replace)):
            if request.labels:
                self._store.label(status.id, dict(request.labels))
                labelled = self._store.status(status.id) or status
                body = self._within_limits(labelled, placed.limits)
            if request_key:
                self._requests.remember(request_key, status.id)
            self._note_joined(owner, status.id, address)
            notes = (*said, *placed.notes)
            return Submitted(body=body, notes=notes, left_out=named.left_out)
        self._check_room(status, owner)
        self._store.reap()
        data: dict[str, str | int] = {"address": address}
        if status and status.state in OPEN and placed.limits.apart(status.limits):
            data["replaced"] = 1
        note = AuditNote(actor=owner or LOCAL, action=Action.SUBMIT, data=data)
        asked_id = self._requests.ask(
            placed.question,
            placed.limits,
            request_key,
            note,
            labels=dict(request.labels),
            replace=request.replace,
        )
        self._remember_noted(owner, asked_id)
        # What is known already is entered, and a study that needs nothing more is ended; not where
        # a worker is at it, or another asked within other limits meanwhile.
        with self._answers.computing():
            study = self._store.study(asked_id)
            if study.state is StudyState.QUEUED and study.limits == placed.limits:
                advance = partial(advance_from_cache, self._store, view=as_predicted)
                is_predicted = placed.limits.fidelity is Fidelity.PREDICTED
                if is_predicted:
                    study = advance(study, placed.versions)
                if conclude(self._store, study, here=False) is None and not is_predicted:
                    advance(study, placed.versions)
        status = self._store.status(asked_id)
        if status is None:
            raise unknown_study(asked_id)  # it was deleted at this moment
        body = self._within_limits(status, placed.limits)
        return Submitted(body=body, notes=(*said, *placed.notes), left_out=named.left_out)

    def placed(self, value: object) -> Placed:
        """The question of a request and its limits, as it would be asked."""
        request, _, beside = read_tune(value)
        return self._place(request, body_hash(value), beside).placed

    def _as_it_stands(self, status: StudyStatus, placed: Placed, replace: bool) -> Body | None:
        """The study, if asking it again would change nothing of it."""
        apart = placed.limits.apart(status.limits)
        if status.state in OPEN:
            if apart and not replace:
                raise OtherLimitsError(status.id, apart)
            return None if apart else self._within_limits(status, placed.limits)
        if apart or status.state is not StudyState.DONE:
            return None
        body = self._within_limits(status, placed.limits)
        return body if body.answered else None

    def _within_limits(self, status: StudyStatus, limits: Limits) -> Body:
        body = self._answers.of(status)
        if body.limits != limits:
            apart, why = limits.apart(body.limits.as_dict()), "was given other limits meanwhile"
            raise OtherLimitsError(status.id, apart, why, "ask anew, with a new Idempotency-Key")
        return body

    def _note_joined(self, owner: str, study_id: str, address: str) -> None:
        """Once for each key and study. A study that cannot be written to is answered all the same:
        nothing is changed by that."""
        with self._lock:
            if (owner, study_id) in self._noted:
                return
        try:
            self._audit.note(owner or LOCAL, Action.JOIN, study_id, address=address)
        except StoreError as error:
            log.warning("who joined %s could not be noted: %s", study_id, error)
        else:
            self._remember_noted(owner, study_id)

    def _remember_noted(self, owner: str, study_id: str) -> None:
        with self._lock:
            self._noted[owner, study_id] = None
            if len(self._noted) > MOST_NOTED:
                self._noted.popitem(last=False)

    def _check_room(self, status: StudyStatus | None, owner: str) -> None:
        """Refuses a further open study, if there are as many as may be, of all or of one key."""
        if status is not None and status.state in OPEN:
            return
        full = ""
        if self._store.count_open() >= self._most_open:
            full = f"{self._most_open} studies are open"
        elif (
            owner
            and self._most_each < self._most_open
            and self._store.count_open(owner) >= self._most_each
        ):
            full = f"{self._most_each} studies of this key are open"
        if full:
            detail, code = f"{full}, which is as many as may be", ProblemCode.TOO_MANY_STUDIES
            raise ProblemError(429, detail, {"Retry-After": str(ROOM_RETRY_S)}, code=code)

    def _place(self, request: TuneRequest, asked: str, beside: Collection[str] | None) -> _Named:
        """Places a question, which takes 0.1 s for some, or gives it as it was placed lately;
        ``beside`` its file these knobs are restricted."""
        workers = self._living_workers(request.pool)
        key = f"{asked} {sorted(worker.id for worker in workers)}"
        with self._lock:
            kept = self._placed.get(key)
        age_s = inf if kept is None else self._clock() - kept[0]
        if kept is not None and age_s <= PLACED_S:
            return kept[1]
        with self._answers.computing(wait=age_s > OLDEST_S) as mine:
            if kept is not None and not mine:
                return kept[1]
            placed = place(
                request, workers, lambda q: self._store.calibration(q.cluster, q.framework.versions)
            )
            question = placed.question
            left = None if beside is None else left_out(question, beside)
        named = _Named(
            placed=placed,
            study_id=study_id(question),
            identity=question.identity,
            left_out=left,
        )
        with self._lock:
            self._placed[key] = self._clock(), named
            while len(self._placed) > MOST_PLACED:
                self._placed.popitem(last=False)
        return named

    def _living_workers(self, pool: str) -> Sequence[RegisteredWorker]:
        with self._lock:
            seen_at, workers = self._living.get(pool, (0.0, None))
        if workers is not None and self._clock() - seen_at <= LIVING_S:
            return workers
        workers = self._workers.living(pool)
        with self._lock:
            if len(self._living) >= MOST_PLACED:
                self._living.clear()
            self._living[pool] = self._clock(), workers
        return workers


def _joining(request: TuneRequest, placed: Placed, status: StudyStatus | None) -> Placed:
    """Puts a question that leaves the fidelity open at that of its study, if this is open: workers
    come and go, and who asks again should not be told that the limits are others for that."""
    if status is None or status.state not in OPEN or request.fidelity or request.replace:
        return placed
    fidelity = Fidelity(status.limits["fidelity"])
    if fidelity is placed.limits.fidelity:
        return placed
    note = f"fidelity {fidelity}: the study is open on it; asked again at its end it is chosen anew"
    # Where the fidelity is left open, the last note is of how it was chosen.
    return replace(placed, limits=request.limits_at(fidelity), notes=(*placed.notes[:-1], note))
