"""Studies as JSON, kept until something happens to them.

An answer takes a tenth of a second of computing, or more, and is asked for much more often than it
changes.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import anyio

from api.study_cache import Kept, Turn
from tuner.answering.known import best_known, is_answered, is_forecast, why_none
from tuner.answering.launch import with_launch
from tuner.errors import NothingFitsError, SpeedUnknownError, TrainsWronglyError, TunerError
from tuner.json_text import json_text
from tuner.model.unknown import shown_question
from tuner.planner import probe_as_dict
from tuner.results import Evidence, headline
from tuner.store import Store
from tuner.store.headlines import Headlines
from tuner.store.standing import Standing
from tuner.study import OPEN, Study, Terms
from tuner.suggestion import Suggestion

log = logging.getLogger(__name__)

MOST_KEPT = 500
"""Answers that are kept, of some 30 kB each."""
MOST_WHOLE = 16
"""Studies that are kept with all that answers, exports and pages are made of, of some megabytes
each."""
MOST_LISTED = 64
"""Studies whose probes are kept as text, of some hundred kB each."""
WAITERS = 2
"""Threads for those who wait: one computes, the other finds what is computed."""

KINDS: Mapping[type[TunerError], str] = {
    NothingFitsError: "nothing_fits",
    SpeedUnknownError: "speed_unknown",
    TrainsWronglyError: "trains_wrongly",
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
    terms: Terms
    """On what terms."""
    answered: bool
    """Whether asking again on the same terms would find nothing new."""

    def with_notes(self, notes: Sequence[str]) -> bytes:
        """The content with what was decided for whoever asked."""
        return self.content[:-1] + f',"notes":{json_text(list(notes))}}}'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A study with its answer: what everything that is shown of it is made of."""

    standing: Standing
    """Where it stood before it was read."""
    study: Study
    """As it was read."""
    suggestion: Suggestion | None
    """As of :func:`tuner.answering.known.best_known`, with its launch."""
    evidence: Evidence
    """What results are made of; its parts are made when they are first asked for."""


class Answers:
    """The answers of one database's studies. Safe to use from any thread."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._headlines = Headlines(store.transactions)
        self.turn = Turn()
        """To compute."""
        self._whole = Kept(self._read, self.turn, most=MOST_WHOLE, clock=clock)
        self._bodies = Kept(self._made, self.turn, most=MOST_KEPT, clock=clock)
        self._probes = Kept(self._listed, self.turn, most=MOST_LISTED, clock=clock)
        self._waiters = anyio.CapacityLimiter(WAITERS)

    def of(self, standing: Standing) -> Body:
        """A study as it stands, or as it stood a moment later.

        Raises:
            StoreError: the database fails.
        """
        return self._bodies.of(standing)

    def fresh(self, standing: Standing) -> Body | None:
        """As :meth:`of`, if nothing has to be computed for it."""
        return self._bodies.fresh(standing)

    def whole(self, standing: Standing) -> Whole:
        """The study with its answer, as :meth:`of`.

        Raises:
            StoreError: the database fails.
        """
        return self._whole.of(standing)

    def probes(self, standing: Standing) -> bytes:
        """The study's probes as JSON, as :meth:`of`.

        Raises:
            StoreError: the database fails.
        """
        return self._probes.of(standing)

    async def soon(self, standing: Standing) -> Body:
        """As :meth:`of`, for those who wait: hundreds may be woken at once by one change.

        What is kept takes no thread. What is not, takes one of a few that are theirs, so that
        other requests have all of theirs.
        """
        if body := self.fresh(standing):
            return body
        return await anyio.to_thread.run_sync(self.of, standing, limiter=self._waiters)

    def computing(self, *, wait: bool = True) -> AbstractContextManager[bool]:
        """See :meth:`api.study_cache.Turn.taken`."""
        return self.turn.taken(wait=wait)

    def _read(self, standing: Standing) -> Whole:
        study = self._store.study(standing.id)
        found = best_known(study)
        suggestion = found and with_launch(found, study.question)
        self._keep_headline(study, found, standing)
        return Whole(
            standing=standing, study=study, suggestion=suggestion, evidence=Evidence(study)
        )

    def _keep_headline(self, study: Study, found: Suggestion | None, standing: Standing) -> None:
        """For lists of studies. Where it cannot be kept, these go without it."""
        try:
            self._headlines.put(headline(study, found), standing.newest_event)
        except TunerError as error:
            log.warning("the headline of %s was not kept: %s", study.id, error)

    def _made(self, standing: Standing) -> Body:
        whole = self.whole(standing)
        content = json_text(study_as_dict(whole.study, whole.suggestion)).encode()
        digest = hashlib.sha256(content).hexdigest()[:32]
        return Body(
            content=content,
            etag=f'"{digest}"',
            standing=whole.standing,
            terms=whole.study.terms,
            answered=is_answered(whole.study, whole.study.terms, here=False),
        )

    def _listed(self, standing: Standing) -> bytes:
        whole = self._whole.fresh(standing)
        study = self._store.study(standing.id) if whole is None else whole.study
        return json_text(probes_as_dict(study)).encode()


def study_as_dict(study: Study, suggestion: Suggestion | None) -> dict[str, Any]:
    """A study as plain values: what was asked, where it stands, and what is suggested."""
    is_open = study.state in OPEN
    return {
        "study_id": study.id,
        "state": str(study.state),
        "reason": study.reason,
        "revision": study.revision,
        "created_at": study.created_at,
        "asked_at": study.asked_at,
        "probes_before": study.probes_before,
        "question": shown_question(study.question.as_dict()),
        "terms": study.terms.as_dict(),
        "terms_id": study.terms.id,
        "pending": suggestion is None and is_open,
        "suggestion": suggestion and suggestion.as_dict(),
        "no_answer": None if is_open or suggestion is None else no_answer(study, suggestion),
    }


def probes_as_dict(study: Study) -> dict[str, Any]:
    """The probes of a study as plain values, oldest first."""
    return {
        "study_id": study.id,
        "revision": study.revision,
        "probes": [probe_as_dict(study, probe) for probe in study.probes],
    }


def no_answer(study: Study, found: Suggestion) -> dict[str, str] | None:
    """Why a study at its end has no answer of the fidelity that was asked for; ``None`` of one."""
    if found.best is not None and not is_forecast(study, found):
        return None
    why = why_none(study, found, shown=True)
    return {"kind": KINDS.get(type(why), "no_result"), "message": str(why)}
