"""Studies as JSON, kept until something happens to them.

An answer takes a tenth of a second of computing, or more, and is asked for much more often than it
changes.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tuner.answering import best_known, is_answered, is_forecast, why_none
from tuner.errors import NothingFitsError, SpeedUnknownError, TunerError
from tuner.json_text import json_text
from tuner.launch import with_launch
from tuner.planner import probe_as_dict
from tuner.store import Store
from tuner.store.standing import Standing
from tuner.study import OPEN, Study
from tuner.suggestion import Suggestion

MOST_KEPT = 500
"""Answers that are kept, of some 30 kB each."""
FRESH_S = 10.0
"""Seconds after which an answer is made anew: calibrations, verdicts of the guard and what other
studies found change it too, and say nothing to the study."""
OLDEST_S = 60.0
"""Seconds for which it is still given while another thread computes: one caller waits for it then,
and not all."""

KINDS: Mapping[type[TunerError], str] = {
    NothingFitsError: "nothing_fits",
    SpeedUnknownError: "speed_unknown",
}
"""Why there is no answer; of anything else, ``no_result``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A study as it is sent."""

    content: bytes
    """JSON, one object."""
    etag: str
    """Of the content, with its quotes."""
    standing: Standing
    """Where the study stood."""
    answered: bool
    """Whether asking again on the same terms would find nothing new."""

    def with_notes(self, notes: Sequence[str]) -> bytes:
        """The content with what was decided for whoever asked."""
        return self.content[:-1] + f',"notes":{json_text(list(notes))}}}'.encode()


class Answers:
    """The answers of one database's studies. Safe to use from any thread."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Body]] = OrderedDict()
        self._lock = threading.Lock()
        self._computing = threading.RLock()

    def of(self, standing: Standing) -> Body:
        """A study as it stands, or as it stood a moment later.

        Raises:
            StoreError: the database fails.
        """
        if body := self._find(standing):
            return body
        old = self._find(standing, OLDEST_S)
        with self.computing(wait=old is None) as mine:
            if old is not None and not mine:
                return old
            return self._find(standing) or self._keep(self._made(standing))

    @contextmanager
    def computing(self, *, wait: bool = True) -> Iterator[bool]:
        """Lets one thread compute at a time: with one interpreter, two only slow each other.

        It gives whether this thread may; without ``wait``, not while another does.
        """
        mine = self._computing.acquire(blocking=wait)
        try:
            yield mine
        finally:
            if mine:
                self._computing.release()

    def _find(self, standing: Standing, oldest_s: float = FRESH_S) -> Body | None:
        with self._lock:
            made_at, body = self._kept.get(standing.id, (0.0, None))
            if body is None or body.standing.newest_event < standing.newest_event:
                return None
            if self._clock() - made_at > oldest_s:
                return None
            self._kept.move_to_end(standing.id)
            return body

    def _keep(self, body: Body) -> Body:
        with self._lock:
            self._kept[body.standing.id] = self._clock(), body
            self._kept.move_to_end(body.standing.id)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return body

    def _made(self, standing: Standing) -> Body:
        # The standing is older than the study that is read, so nothing that happens is missed.
        study = self._store.study(standing.id)
        content = json_text(study_as_dict(study)).encode()
        digest = hashlib.sha256(content).hexdigest()[:32]
        return Body(
            content=content,
            etag=f'"{digest}"',
            standing=standing,
            answered=is_answered(study, study.terms, here=False),
        )


def study_as_dict(study: Study) -> dict[str, Any]:
    """A study as plain values: what was asked, where it stands, and what is suggested."""
    found = best_known(study)
    suggestion = found and with_launch(found, study.question)
    is_open = study.state in OPEN
    return {
        "study_id": study.id,
        "state": str(study.state),
        "reason": study.reason,
        "revision": study.revision,
        "created_at": study.created_at,
        "asked_at": study.asked_at,
        "probes_before": study.probes_before,
        "question": study.question.as_dict(),
        "terms": study.terms.as_dict(),
        "pending": suggestion is None and is_open,
        "suggestion": suggestion and suggestion.as_dict(),
        "no_answer": None if is_open or found is None else _no_answer(study, found),
    }


def probes_as_dict(study: Study) -> dict[str, Any]:
    """The probes of a study as plain values, oldest first."""
    return {
        "study_id": study.id,
        "revision": study.revision,
        "probes": [probe_as_dict(study, probe) for probe in study.probes],
    }


def _no_answer(study: Study, found: Suggestion) -> dict[str, str] | None:
    if found.best is not None and not is_forecast(study, found):
        return None
    why = why_none(study, found, shown=True)
    return {"kind": KINDS.get(type(why), "no_result"), "message": str(why)}
