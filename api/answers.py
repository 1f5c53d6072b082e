"""Studies as JSON, kept until something happens to them.

An answer takes a tenth of a second of computing, or more, and is asked for much more often than it
changes.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

import anyio

from tuner.client.advance import is_answered
from tuner.client.answered import keep_line, with_launch
from tuner.client.place import with_reason
from tuner.core.answer import Suggestion
from tuner.core.study import OPEN, Limits, Question, Study
from tuner.explain.known import best_known, is_unanswered, why_none
from tuner.model.shape import ANONYMOUS, published_as, shown_question
from tuner.planner import probe_as_dict
from tuner.results.points import Evidence
from tuner.results.summary import in_brief, summary_of
from tuner.store import Store, StudyStatus
from tuner.text import json_text

T = TypeVar("T")


# Seconds after which something is made anew: calibrations, checks of the guard and what other
# studies found change it too, and leave no trace in the study.
FRESH_S = 10.0
# Seconds for which it is still given while another thread computes: one caller waits for it then,
# and not all.
OLDEST_S = 60.0
# Answers that are kept, of some 30 kB each.
MOST_KEPT = 500
# Studies that are kept with all that answers, exports and pages are made of, of some megabytes
# each.
MOST_WHOLE = 16
# Bytes of a study in brief.
LONGEST_BRIEF = 1000
# Threads for those who wait: one computes, the other finds what is computed.
WAITERS = 2


class Kept(Generic[T]):
    """One kind of thing, of the studies that were asked for last. Safe to use from any thread."""

    def __init__(
        self,
        make: Callable[[StudyStatus], T],
        turn: threading.RLock,
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make`` makes it of a study, by the thread that holds the ``turn`` to compute."""
        self._make = make
        self.turn = turn
        self._most = most
        self._clock = clock
        self._found: OrderedDict[str, tuple[float, StudyStatus, T]] = OrderedDict()
        self._lock = threading.Lock()
        self._waiters = anyio.CapacityLimiter(WAITERS)

    def __len__(self) -> int:
        return len(self._found)

    def of(self, status: StudyStatus) -> T:
        """The thing of a study as it stands, or as it stood a moment later."""
        if (found := self.fresh(status)) is not None:
            return found
        old = self._find(status, OLDEST_S)
        if not self.turn.acquire(blocking=old is None):
            assert old is not None
            return old
        try:
            if (found := self.fresh(status)) is not None:
                return found
            made = self._make(status)
            # Kept before another thread's turn, which would make it again. The status is older
            # than the study that was read, so nothing that happens is missed.
            with self._lock:
                self._found[status.id] = self._clock(), status, made
                self._found.move_to_end(status.id)
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
        finally:
            self.turn.release()
        return made

    async def soon(self, status: StudyStatus) -> T:
        """The same as :meth:`of`, for those who wait."""
        # One change may wake hundreds at once: what is kept takes no thread, and what is not takes
        # one of a few that are theirs.
        if (found := self.fresh(status)) is not None:
            return found
        return await anyio.to_thread.run_sync(self.of, status, limiter=self._waiters)

    def fresh(self, status: StudyStatus) -> T | None:
        """The thing, if it is kept and need not be made anew: takes no time."""
        return self._find(status, FRESH_S)

    def _find(self, status: StudyStatus, oldest_s: float) -> T | None:
        with self._lock:
            if (kept := self._found.get(status.id)) is None:
                return None
            made_at, then, found = kept
            if then.newest_event < status.newest_event or self._clock() - made_at > oldest_s:
                return None
            is_same = (then.state, then.reason) == (status.state, status.reason)
            if then.newest_event == status.newest_event and not is_same:
                return None  # a worker is silent, which makes no event
            self._found.move_to_end(status.id)
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A study as it is sent."""

    content: bytes
    etag: str
    """Entity tag of the content, with its quotes; weak, since answers may be compressed."""
    status: StudyStatus
    limits: Limits
    answered: bool
    """True where asking again within the same limits would find nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A study with its answer: all that is shown of it is made of this."""

    status: StudyStatus
    study: Study
    suggestion: Suggestion | None
    """The suggestion of :func:`tuner.explain.known.best_known`, with its launch."""
    evidence: Evidence


class Answers(Kept[Body]):
    """The answers of one database's studies, as they are sent."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        # With one interpreter, two threads that compute only slow each other.
        super().__init__(self._made, threading.RLock(), most=MOST_KEPT, clock=clock)
        self._whole = Kept(self._read, self.turn, most=MOST_WHOLE, clock=clock)

    def whole(self, status: StudyStatus) -> Whole:
        return self._whole.of(status)

    def probes(self, status: StudyStatus) -> bytes:
        whole = self._whole.fresh(status)
        study = self._store.study(status.id) if whole is None else whole.study
        wasted = self._store.wasted(study.id)
        probes = [
            {
                **probe_as_dict(study, probe),
                "wasted": [asdict(one) for one in wasted.get(probe.id, ())],
            }
            for probe in study.probes
        ]
        found = {"study_id": study.id, "revision": study.revision, "probes": probes}
        return json_text(found).encode()

    @contextmanager
    def computing(self, *, wait: bool = True) -> Iterator[bool]:
        """Holds the turn to compute, and gives whether it is held; without ``wait`` only if no
        other thread computes."""
        mine = self.turn.acquire(blocking=wait)
        try:
            yield mine
        finally:
            if mine:
                self.turn.release()

    def _read(self, status: StudyStatus) -> Whole:
        study = with_reason(self._store, self._store.study(status.id))
        found = best_known(study)
        keep_line(self._store, summary_of(study, found), status.newest_event)
        return Whole(
            status=status,
            study=study,
            suggestion=found and with_launch(found, without_name(study.question)),
            evidence=Evidence(study),
        )

    def _made(self, status: StudyStatus) -> Body:
        whole = self.whole(status)
        study, suggestion = whole.study, whole.suggestion
        why = None
        if suggestion and is_unanswered(study, suggestion):
            why = why_none(study, suggestion, shown=True)
        found = {
            "study_id": study.id,
            "state": str(study.state),
            "reason": study.reason,
            "revision": study.revision,
            "created_at": study.created_at,
            "asked_at": study.asked_at,
            "probes_before": study.probes_before,
            "question": shown_question(study.question.as_dict()),
            "terms": study.limits.as_dict(),
            "terms_id": study.limits.id,
            "labels": dict(study.labels),
            "pending": study.state in OPEN and (suggestion is None or suggestion.best is None),
            "suggestion": suggestion and suggestion.as_dict(),
            "no_answer": why and {"kind": why.kind, "message": str(why)},
        }
        content = json_text(found).encode()
        return Body(
            content=content,
            etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
            status=whole.status,
            limits=study.limits,
            answered=is_answered(study, study.limits, here=False),
        )


def brief(content: bytes) -> bytes:
    """A study's body in less than :data:`LONGEST_BRIEF` bytes."""
    short = in_brief(json.loads(content))
    text = json_text(short).encode()
    return text if len(text) < LONGEST_BRIEF else json_text({**short, "launch": []}).encode()


def with_told(content: bytes, **told: object) -> bytes:
    """A study's body, whole or in brief, with what is told to whoever asked."""
    return content[:-1] + b"," + json_text(told).encode()[1:]


# A study's page has several files after every probe.
@lru_cache(maxsize=16)
def without_name(question: Question) -> Question:
    """The question for files that others run: of a model that is not the catalogue's the name is
    whatever somebody who asked the same has called it."""
    model = question.workload.model
    known = replace(model, name=published_as(model) or ANONYMOUS)
    return replace(question, workload=replace(question.workload, model=known))
