"""A worker that serves any study: takes one after another, and says that it is there."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from signal import SIGTERM
from typing import Self, TypeVar

from tuner.core import lease
from tuner.core.cluster import Device
from tuner.core.framework import installed_versions
from tuner.core.measurement import PROBED, Fidelity
from tuner.core.study import OPEN, Limits, Study, StudyState
from tuner.dryrun import dry_run_versions
from tuner.errors import AwayError, ProbeError, TunerError, UnreadableStudyError
from tuner.explain.known import best_known
from tuner.logs import bound
from tuner.machine import Machine, together
from tuner.store import Store, StudyStatus, WorkerIdentity, open_store
from tuner.store.workers import Workers
from tuner.text import count_text
from workers.devices import check_machine
from workers.executor import WorkerOptions
from workers.lease import BEATS, may_pass
from workers.measuring.records import remove_leftovers
from workers.stop import INTERRUPTED, StopRequest
from workers.worker import Worker

T = TypeVar("T")

# Between two looks for a request to stop.
SIGNALS_S = 0.2
# Between two looks for a study, while there is none.
LOOK_S = 1.0
# Until a study is looked at again that waits for other workers.
AGAIN_S = 2.0
# Until a study is looked at again that this machine could not do, as it turned out.
TROUBLE_S = 60.0
# Between two tries of a store that does not answer; pauses grow to it.
LONGEST_PAUSE_S = 30.0
# Looks for a study that find none, about a second apart, after which dry runs' process ends.
IDLE_LOOKS = 60

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """Tells a queue if a study is for it."""

    takes: bool
    why: str = ""  # the reason to pass it over, which is logged; empty where nobody has to know
    again_s: float = inf
    """Seconds after which that may be otherwise, though nothing happened to the study."""


@dataclass(slots=True, kw_only=True)
class StudyQueue:
    """Takes the study that was asked first of those that it can do, and works at it, and so on."""

    store: Store
    stop: StopRequest
    pools: tuple[str, ...]  # labels of studies that are served, beside those that name none
    judge: Callable[[Study], Fitness]  # says what is for this queue
    work: Callable[[Study], object]  # works at a study until nothing is left for this worker there
    idle: Callable[[], None] = lambda: None  # called at each look that finds no study
    at: set[str] = field(default_factory=set)
    """Studies that are worked at, by this queue and by those that share the set."""
    look_s: float = LOOK_S  # seconds between two looks for a study, while there is none
    _passed: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Revisions at which studies were passed over, and moments until which they are."""
    _logged: set[tuple[str, str]] = field(default_factory=set)
    _may_want_us: bool = False
    """Set where an open study was passed over that may be for us a little later."""

    def run(self, *, drains: bool = False) -> None:
        """Works until a stop is requested, or if it ``drains`` until no study is left for it."""
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
            if drains and not self._may_want_us and not self.at:
                return
            self.idle()
            self.stop.wait(self.look_s)

    def take_one(self) -> bool:
        """Works at the first study that is for this queue; true if there was one. What it raises is
        the store's trouble."""
        study = self._next()
        if study is None:
            return False
        self.at.add(study.id)
        try:
            with bound(study=study.id):
                again_s = self._work(study)
            if now := self.store.status(study.id):  # unless it was deleted meanwhile
                self._pass(study.id, now.revision, again_s)
        finally:
            self.at.discard(study.id)
        return True

    def has_passed(self, study: Study) -> bool:
        """True if there is nothing to do in a study for this queue, as the study is now."""
        return self._passed.get(study.id, (None, 0.0))[0] == study.revision

    def _next(self) -> Study | None:
        if lost := self.store.reap():
            log.warning("%s taken from workers that are lost", count_text(lost, "probe"))
        self._may_want_us = False
        found = self.store.open_studies(self.pools)
        # what was noted of studies that are not open any more is forgotten
        open_ids = {one.id for one in found}
        self._passed = {key: passed for key, passed in self._passed.items() if key in open_ids}
        self._logged = {one for one in self._logged if one[0] in open_ids}
        now = time.monotonic()
        for one in found:
            revision, until = self._passed.get(one.id, (None, 0.0))
            if revision == one.revision and now < until:
                self._may_want_us |= until != inf
                continue
            study = self._read(one)
            if study is None or study.state not in OPEN:
                continue
            try:
                fitness = self.judge(study)
            except Exception:
                # working at it meets the same trouble, and ends the study with the reason
                log.exception("study %s", study.id)
                return study
            if fitness.takes:
                return study
            self._log_once(study.id, fitness.why)
            self._pass(study.id, study.revision, fitness.again_s)
            self._may_want_us |= fitness.again_s != inf
        return None

    def _read(self, one: StudyStatus) -> Study | None:
        """A study; ``None``, until something happens to it, where it cannot be understood."""
        try:
            return self.store.study(one.id)
        except TunerError as error:
            if may_pass(error):
                raise
            self._log_once(one.id, str(error))
        except Exception as error:
            log.exception("study %s", one.id)
            self._log_once(one.id, f"it cannot be read: {error!r}")
        self._pass(one.id, one.revision, inf)
        return None

    def _work(self, study: Study) -> float:
        """Works at a study; the seconds after which it may be looked at again."""
        if (study.id, "") not in self._logged:  # not at each look while others hold the devices
            self._logged.add((study.id, ""))
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
        if self.store.move(study_id, StudyState.FAILED, reason, expect=OPEN):
            log.warning("study %s has failed: %s", study_id, reason)

    def _pass(self, study_id: str, revision: int, seconds: float) -> None:
        self._passed[study_id] = revision, time.monotonic() + seconds

    def _log_once(self, study_id: str, why: str) -> None:
        if why and (study_id, why) not in self._logged:
            self._logged.add((study_id, why))
            log.info("study %s is left to other workers: %s", study_id, why)


class Until(StrEnum):
    """The moment at which a service ends by itself."""

    STOPPED = "stopped"  # never
    ONCE = "once"  # after one study, or when none is open
    DRAINED = "drained"  # when no open study is left for it


class Service:
    """Serves studies of its pools, and those that name none, until it is told to stop.

    It has two queues, so that nobody waits for a prediction while another's probes run: one makes
    dry runs, which hold no device, and one runs probes.
    """

    def __init__(
        self,
        store: Store,
        *,
        stop: StopRequest,
        pools: tuple[str, ...] = (),
        name: str = "",
        until: Until = Until.STOPPED,
        options: WorkerOptions | None = None,
    ) -> None:
        """A service that does nothing yet, of studies with these labels and of those with none.

        Raises:
            UsageError: a label is not one.
            ProbeError: what is where probes run cannot be found out.
        """
        self._store = store
        self._stop = stop
        self._pools = tuple(Limits(pool=pool).pool for pool in pools)
        self._name = name
        self._until = until
        self._options = replace(options or WorkerOptions(), serves=True)
        self._machine = together(self._options.site.machines())
        self._dry_runner = self._options.dry_runner()
        self._looks = 0
        at: set[str] = set()
        self._predictions = self._queue(self._judge_dry, self._work_dry, at, idle=self._end_idle)
        self._probes = self._queue(self._judge_probes, self._work, at)

    def run(self) -> int:
        """Serves; the exit code: 0 when it has ended by itself, also since what it serves with is
        taken away, or was told so by SIGTERM, as services are; else 130."""
        remove_leftovers(self._options.folder)
        identity = WorkerIdentity.of_this_process(self._name)
        entry = Registration(self._store, identity, self._pools, self._machine)
        log.info("serving %s as %s", ", ".join(["any study", *self._pools]), identity.name)
        with self._dry_runner, entry:
            if self._until is Until.ONCE:
                self._queue(self._judge_any, self._work_to_its_end, set()).take_one()
            else:
                self._run_queues()
        return exit_code(self._stop)  # a signal that came while it took its leave counts too

    def _run_queues(self) -> None:
        drains = self._until is Until.DRAINED
        both = (self._predictions, self._probes)
        with ThreadPoolExecutor(2, thread_name_prefix="queue") as threads:
            queues = [threads.submit(queue.run, drains=drains) for queue in both]
            try:
                while wait(queues, SIGNALS_S, FIRST_EXCEPTION).not_done:
                    for queue in queues:  # signals come to this thread: it must not sleep long
                        if queue.done():
                            queue.result()
            except BaseException as error:
                self._stop.request(f"the worker fails: {error!r}")
                raise
        for queue in queues:
            queue.result()

    def _queue(
        self,
        judge: Callable[[Study], Fitness],
        work: Callable[[Study], object],
        at: set[str],
        idle: Callable[[], None] = lambda: None,
    ) -> StudyQueue:
        return StudyQueue(
            store=self._store,
            stop=self._stop,
            pools=self._pools,
            judge=judge,
            work=work,
            idle=idle,
            at=at,
        )

    # Studies for each queue

    def _judge_any(self, study: Study) -> Fitness:
        return Fitness(takes=True) if is_predicted(study) else self._can_probe(study)

    def _judge_dry(self, study: Study) -> Fitness:
        if study.question.script is not None:
            return Fitness(takes=False)  # the command that asked has a worker of its own
        return Fitness(takes=is_predicted(study) or wants_dry_runs(study))

    def _judge_probes(self, study: Study) -> Fitness:
        if is_predicted(study):
            return Fitness(takes=False)
        can = self._can_probe(study)
        on_cpu = study.question.cluster.gpu.device is Device.CPU
        if not (can.takes and on_cpu and wants_dry_runs(study)):
            return can
        if self._predictions.has_passed(study):
            return can
        return Fitness(takes=False, again_s=AGAIN_S)  # its own dry runs would spoil its times

    def _can_probe(self, study: Study) -> Fitness:
        if study.question.script is not None:
            return Fitness(takes=False, why="the command that asked runs its script")
        site = self._options.site
        try:
            there = self._machine if site.is_here else together(site.machines())
            check_machine(study.question, study.limits.fidelity, there)
        except ProbeError as error:
            return Fitness(takes=False, why=str(error))
        return Fitness(takes=True)

    # Work

    def _work_to_its_end(self, study: Study) -> None:
        if wants_dry_runs(study):
            self._work(study, predicts=True)
        self._work(study)

    def _work_dry(self, study: Study) -> None:
        self._looks = 0
        self._work(study, predicts=not is_predicted(study))

    def _work(self, study: Study, *, predicts: bool = False) -> None:
        Worker(
            self._store,
            study.id,
            stop=self._stop,
            options=replace(self._options, predicts=predicts),
            dry_runner=self._dry_runner,
            name=self._name,
        ).run()

    def _end_idle(self) -> None:
        """Ends the process that dry-runs after a while: it holds some hundred MiB."""
        self._looks += 1
        if self._looks == IDLE_LOOKS:
            self._dry_runner.end()


def exit_code(stop: StopRequest) -> int:
    """The exit code of a service that ends now, as of :meth:`Service.run`; logs why it ends."""
    if why := stop.wait(0):
        log.info("%s", why)
        return 0 if stop.signal is SIGTERM or stop.is_from_within else INTERRUPTED
    return 0


def is_predicted(study: Study) -> bool:
    """True if a study's own probes are dry runs."""
    return study.limits.fidelity is Fidelity.PREDICTED


def wants_dry_runs(study: Study) -> bool:
    """True if a study that is to be probed has no answer yet, and dry runs would give it one."""
    return study.limits.fidelity in PROBED and not study.dry_runs and best_known(study) is None


class Registration:
    """Keeps a worker's entry in the database, which shows what it has and that it lives.

    A context, with a thread of its own; at its end the entry says ``stopped``. A store that does
    not answer is asked again at the next beat: work goes on without an entry.
    """

    def __init__(
        self, store: Store, identity: WorkerIdentity, pools: tuple[str, ...], machine: Machine
    ) -> None:
        self._workers = Workers(store.transactions)
        self._identity = identity
        self._pools = pools
        self._machine = machine
        self._beat_s = lease.LEASE_S / BEATS
        self._id: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="registration")

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(self._beat_s)  # a store that hangs must not hold the worker
        if (entry := self._id) is not None:
            self._try(lambda: self._workers.stopped(entry))

    def _keep(self) -> None:
        while not self._done.wait(self._beat_s):
            self._beat()

    def _beat(self) -> None:
        entry = self._id
        if entry is None or self._try(lambda: self._workers.seen(entry)) is False:
            versions = {**installed_versions(), **dry_run_versions()}
            known = (self._identity, self._pools, self._machine.as_dict(), versions)
            self._id = self._try(lambda: self._workers.register(*known))

    def _try(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except TunerError as error:
            log.warning("cannot say that this worker lives: %s", error)
            return None


def open_when_reachable(url: str | None, stop: StopRequest, *, create: bool = True) -> Store | None:
    """The database, as soon as it can be reached; ``None`` when a stop is requested before.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours.
        StoreError: it is of another version, or damaged: waiting mends neither.
    """
    pause_s = LOOK_S
    while not stop.wait(0):
        try:
            return open_store(url, create=create)
        except AwayError as error:
            log.warning("%s; trying again in %.0f s", error, pause_s)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return None
