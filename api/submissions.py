"""Questions that come in: read, placed, and asked, unless they are answered already."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from threading import Lock

from sqlalchemy.orm import Session

from api.answers import OLDEST_S, Answers, Body
from api.problems import ProblemError
from tuner.advance import conclude
from tuner.answering import closed_as_probed, foresee
from tuner.cost.calibration import Calibration
from tuner.errors import TunerError
from tuner.measurement import Fidelity
from tuner.placing import Placed, place
from tuner.request import TuneRequest, read_request
from tuner.store import Store, study_id
from tuner.store.requests import RequestKey, Requests, body_hash
from tuner.store.standing import Standing, Standings
from tuner.store.workers import RegisteredWorker, Workers
from tuner.study import OPEN, Question, Study, StudyState, Terms

ROOM_RETRY_S = 60
"""Seconds after which to ask again while too many studies are open."""
SEEN_S = 1.0
"""Seconds for which the list of living workers is taken as it was."""
PLACED_S = 10.0
"""Seconds after which the same question is placed anew, when nothing else is computed: calibrations
may come."""
MOST_PLACED = 500
"""Questions that are kept placed."""

Also = Callable[[Session, str], None]
"""Writes more in the transaction that asks; it is given the study's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of a question."""

    body: Body
    """The study that answers it."""
    notes: tuple[str, ...]
    """What was decided and not asked for, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A question that is placed, with what follows from it."""

    placed: Placed
    study_id: str
    identity: str


class Submissions:
    """Takes questions for one database. Safe to use from any thread."""

    def __init__(
        self,
        store: Store,
        answers: Answers,
        most_open: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most_open`` are the studies that may be open before new ones are refused."""
        self._store = store
        self._answers = answers
        self._most_open = most_open
        self._clock = clock
        self._standings = Standings(store.transactions)
        self._requests = Requests(store.transactions)
        self._workers = Workers(store.transactions)
        self._lock = Lock()
        self._living: dict[str, tuple[float, list[RegisteredWorker]]] = {}
        self._placed: OrderedDict[str, tuple[float, _Named]] = OrderedDict()

    def submit(self, value: object, *, owner: str, key: str | None, also: Also) -> Submitted:
        """Ask the question of a request, unless it is being answered, or was, on its terms.

        Args:
            value: the request's body.
            owner: whose ``key`` it is.
            key: the sender's own word for this request, if there is one.
            also: writes more in the transaction that asks, if any does.

        Raises:
            UsageError: something about it is wrong; nothing was written.
            ProblemError: too many studies are open.
            StoreError: the database fails.
        """
        asked = body_hash(value)
        request_key = None if key is None else RequestKey(owner=owner, key=key, body_hash=asked)
        request = read_request(value)
        if request_key and (known := self._requests.answered(request_key)):
            return Submitted(body=self._answers.of(self._standing(known)), notes=())
        named = self._place(request, asked)
        placed, standing = named.placed, self._standings.one(named.study_id)
        if standing is not None and standing.identity != named.identity:
            standing = None  # which asking refuses
        if standing is not None and (body := self._as_it_stands(standing, placed)):
            if request_key:
                self._requests.remember(request_key, standing.id)
            return Submitted(body=body, notes=placed.notes)
        self._check_room(standing)
        self._store.reap()
        asked_id = self._requests.ask(placed.question, placed.terms, request_key, also)
        self._advance(asked_id, placed)
        return Submitted(body=self._answers.of(self._standing(asked_id)), notes=placed.notes)

    def _as_it_stands(self, standing: Standing, placed: Placed) -> Body | None:
        """The study, if asking it again would change nothing of it."""
        if not _same(standing, placed.terms):
            return None
        if standing.state in OPEN:
            return self._answers.of(standing)
        if standing.state is not StudyState.DONE:
            return None
        body = self._answers.of(standing)
        return body if body.answered else None

    def _check_room(self, standing: Standing | None) -> None:
        """Refuse a further open study, if there are as many as may be."""
        if standing is not None and standing.state in OPEN:
            return
        if self._store.count_open() >= self._most_open:
            detail = f"{self._most_open} studies are open, which is as many as may be"
            raise ProblemError(429, detail, {"Retry-After": str(ROOM_RETRY_S)})

    def _advance(self, asked_id: str, placed: Placed) -> None:
        """Enter what is known already, and end a study that needs nothing more."""
        with self._answers.computing():
            study = self._store.study(asked_id)
            if study.state is not StudyState.QUEUED or study.terms != placed.terms:
                return  # a worker is at it, or another asked on other terms meanwhile
            if placed.terms.fidelity is Fidelity.PREDICTED:
                conclude(self._store, self._foreseen(study, placed), here=False)
            elif closed_as_probed(self._store, study) is None:
                self._foreseen(study, placed)

    def _foreseen(self, study: Study, placed: Placed) -> Study:
        return foresee(self._store, study, placed.versions)

    def _place(self, request: TuneRequest, asked: str) -> _Named:
        """As :func:`tuner.placing.place`, which takes a tenth of a second for some questions."""
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
            placed = place(request, workers, self._rates)
        question = placed.question
        named = _Named(placed=placed, study_id=study_id(question), identity=question.identity)
        with self._lock:
            self._placed[key] = self._clock(), named
            while len(self._placed) > MOST_PLACED:
                self._placed.popitem(last=False)
        return named

    def _rates(self, question: Question) -> Calibration | None:
        return self._store.calibration(question.cluster, question.framework.versions)

    def _living_workers(self, pool: str) -> Sequence[RegisteredWorker]:
        with self._lock:
            seen_at, workers = self._living.get(pool, (0.0, None))
        if workers is not None and self._clock() - seen_at <= SEEN_S:
            return workers
        workers = self._workers.living(pool)
        with self._lock:
            if len(self._living) >= MOST_PLACED:
                self._living.clear()
            self._living[pool] = self._clock(), workers
        return workers

    def _standing(self, known: str) -> Standing:
        standing = self._standings.one(known)
        assert standing is not None, "studies are never deleted"
        return standing


def _same(standing: Standing, terms: Terms) -> bool:
    """Whether a study was asked on these terms."""
    try:
        return Terms.from_dict(standing.terms) == terms
    except (TunerError, TypeError, KeyError, ValueError):  # another version's
        return False
