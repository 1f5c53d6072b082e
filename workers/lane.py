"""One study after another: which of those that are open want this worker, and working at them."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from tuner.errors import ProbeError, TunerError, UnreadableStudyError
from tuner.logs import bound
from tuner.store import OpenStudy, Store
from tuner.study import OPEN, Study, StudyState
from workers.retrying_store import may_pass
from workers.stop import StopRequest

LOOK_S = 1.0
"""Between two looks for a study, while there is none."""
AGAIN_S = 2.0
"""Until a study is looked at again that waits for other workers."""
TROUBLE_S = 60.0
"""Until a study is looked at again that this machine could not do, as it turned out."""
LONGEST_PAUSE_S = 30.0
"""Between two tries of a store that does not answer; pauses grow to it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whether a study is for a lane."""

    takes: bool
    """Whether it is."""
    why: str = ""
    """What is told where it is not; nothing if it is empty."""
    again_s: float = inf
    """Seconds after which that may be otherwise, though nothing happened to the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """A study that was passed over."""

    revision: int
    """At which it was."""
    until: float
    """When it is looked at again all the same, by the monotonic clock."""


@dataclass(slots=True, kw_only=True)
class Lane:
    """Takes the study that was asked first of those that it can do, and works at it, and so on."""

    store: Store
    """Where studies are."""
    stop: StopRequest
    """Asked all the while."""
    pools: tuple[str, ...]
    """Labels of studies that are served, beside those that name none."""
    judge: Callable[[Study], Judged]
    """Says what is for this lane."""
    work: Callable[[Study], object]
    """Works at a study until nothing is left for this worker there."""
    idle: Callable[[], None] = lambda: None
    """Called at each look that finds no study."""
    at: set[str] = field(default_factory=set)
    """Studies that are worked at, by this lane and by those that share the set."""
    look_s: float = LOOK_S
    """Seconds between two looks for a study, while there is none."""
    _passed: dict[str, _Passed] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)
    _left: bool = False

    def run(self, *, drains: bool = False) -> None:
        """Work until a stop is requested.

        Args:
            drains: whether to end when no open study is left for this worker.
        """
        pause_s = self.look_s
        while not self.stop.wait(0):
            try:
                worked = self.take_one()
            except TunerError as error:  # the store's: what a study causes, ends that study
                log.warning("%s; trying again in %.0f s", error, pause_s)
                self.stop.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s = self.look_s
            if worked:
                continue
            if drains and not self._left and not self.at:
                return
            self.idle()
            self.stop.wait(self.look_s)

    def take_one(self) -> bool:
        """Work at the first study that wants this worker; whether there was one.

        Raises:
            StoreError: the store does not answer.
            UsageError: it cannot be written.
        """
        study = self._next()
        if study is None:
            return False
        self.at.add(study.id)
        try:
            with bound(study=study.id):
                again_s = self._work(study)
            revision = self.store.study(study.id).revision
            self._pass(study.id, revision, again_s)
        finally:
            self.at.discard(study.id)
        return True

    def has_passed(self, study: Study) -> bool:
        """Whether there is nothing to do in a study for this lane, as the study stands."""
        passed = self._passed.get(study.id)
        return passed is not None and passed.revision == study.revision

    def _next(self) -> Study | None:
        self.store.reap()
        self._left = False
        found = self.store.open_studies(self.pools)
        self._forget(found)
        for one in found:
            if self._is_passed(one):
                continue
            study = self._read(one)
            if study is None or study.state not in OPEN:
                continue
            judged = self._judged(study)
            if judged.takes:
                return study
            self._tell(study.id, judged.why)
            self._pass(study.id, study.revision, judged.again_s)
            self._left = self._left or judged.again_s != inf
        return None

    def _read(self, one: OpenStudy) -> Study | None:
        """A study; ``None``, until something happens to it, where it cannot be understood."""
        try:
            return self.store.study(one.id)
        except TunerError as error:
            if may_pass(error):
                raise
            self._tell(one.id, str(error))
        except Exception as error:
            log.exception("study %s", one.id)
            self._tell(one.id, f"it cannot be read: {error!r}")
        self._pass(one.id, one.revision, inf)
        return None

    def _judged(self, study: Study) -> Judged:
        try:
            return self.judge(study)
        except Exception:
            # Working at it meets the same trouble, and ends the study with the reason.
            log.exception("study %s", study.id)
            return Judged(takes=True)

    def _work(self, study: Study) -> float:
        """Work at a study; after how many seconds it may be looked at again."""
        if (study.id, "") not in self._told:  # not at each look while others hold the devices
            self._told.add((study.id, ""))
            log.info("working at study %s", study.id)
        try:
            self.work(study)
        except (ProbeError, UnreadableStudyError) as error:
            log.warning("study %s cannot be done here: %s", study.id, error)
            return TROUBLE_S
        except (OSError, MemoryError) as error:  # this machine's trouble, and no study's
            log.exception("study %s", study.id)
            reason = f"a worker could not go on: {error!r}"
            self.store.move(study.id, StudyState.QUEUED, reason, expect={StudyState.RUNNING})
            return TROUBLE_S
        except TunerError as error:
            if may_pass(error):
                raise
            self._fail(study.id, str(error))
        except Exception as error:
            log.exception("study %s", study.id)
            self._fail(study.id, f"an error of the planner's or the worker's: {error!r}")
        return AGAIN_S

    def _fail(self, study_id: str, reason: str) -> None:
        """End a study that nobody can go on with."""
        if self.store.move(study_id, StudyState.FAILED, reason, expect=OPEN):
            log.warning("study %s has failed: %s", study_id, reason)

    def _is_passed(self, one: OpenStudy) -> bool:
        passed = self._passed.get(one.id)
        if passed is None or passed.revision != one.revision:
            return False
        now = time.monotonic()
        if passed.until != inf and now < passed.until:
            self._left = True  # it may want this worker again
        return now < passed.until

    def _pass(self, study_id: str, revision: int, seconds: float) -> None:
        self._passed[study_id] = _Passed(revision=revision, until=time.monotonic() + seconds)

    def _forget(self, found: list[OpenStudy]) -> None:
        """What was noted of studies that are not open any more."""
        kept = {one.id for one in found}
        self._passed = {key: passed for key, passed in self._passed.items() if key in kept}
        self._told = {told for told in self._told if told[0] in kept}

    def _tell(self, study_id: str, why: str) -> None:
        """Say once why a study is passed over; nothing without a reason."""
        if why and (study_id, why) not in self._told:
            self._told.add((study_id, why))
            log.info("study %s is left to other workers: %s", study_id, why)
