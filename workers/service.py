"""A worker that serves any study: takes one after another, and says that it is there."""

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from enum import StrEnum
from signal import SIGTERM

from tuner.answering.known import best_known
from tuner.cluster import Device
from tuner.errors import ProbeError
from tuner.machine import together
from tuner.measurement import PROBED, Fidelity
from tuner.store import Store, WorkerIdentity
from tuner.study import Study, Terms
from workers.dry_runs import DryRuns
from workers.lane import AGAIN_S, Judged, Lane
from workers.machine import check_machine
from workers.measuring.folders import remove_leftovers
from workers.options import Options
from workers.registration import Registration
from workers.stop import StopRequest
from workers.worker import INTERRUPTED, Worker

LOOK_S = 0.2
"""Between two looks for a request to stop."""
IDLE_LOOKS = 60
"""Looks for a study without a find, about a second apart, after which dry runs' process ends."""

log = logging.getLogger(__name__)


class Until(StrEnum):
    """When a service ends by itself."""

    STOPPED = "stopped"  # never
    ONCE = "once"  # after one study, or when none is open
    DRAINED = "drained"  # when no open study is left for it


class Service:
    """Serves studies of its pools, and those that name none, until it is told to stop.

    It has two lanes, so that nobody waits for a prediction while another's probes run: one makes
    dry runs, which take no turn on a device, and one runs probes.
    """

    def __init__(
        self,
        store: Store,
        *,
        stop: StopRequest,
        pools: tuple[str, ...] = (),
        name: str = "",
        until: Until = Until.STOPPED,
        options: Options | None = None,
    ) -> None:
        """A service.

        Args:
            store: where studies are.
            stop: asked all the while.
            pools: labels of studies to serve, beside those that name none.
            name: what people see; host and process number unless given.
            until: when it ends by itself.
            options: how to work.

        Raises:
            UsageError: a label is not one.
            ProbeError: what is where probes run cannot be found out.
        """
        self._store = store
        self._stop = stop
        self._pools = tuple(Terms(pool=pool).pool for pool in pools)
        self._name = name
        self._until = until
        self._options = replace(options or Options(), serves=True)
        self._machine = together(self._options.site.machines())
        self._dry_runs = DryRuns(self._options.dry_runner)
        self._looks = 0
        at: set[str] = set()
        self._predicts = self._lane(self._for_dry_runs, self._work_dry, at, idle=self._end_idle)
        self._probes = self._lane(self._for_probes, self._work, at)

    def run(self) -> int:
        """Serve; the exit code.

        Returns:
            0 when it has ended by itself, also since what it serves with is taken away, or was told
            so by SIGTERM, as services are; else 130.
        """
        remove_leftovers(self._options.folder)
        identity = WorkerIdentity.of_this_process(self._name)
        entry = Registration(self._store, identity, self._pools, self._machine)
        log.info("serving %s as %s", ", ".join(["any study", *self._pools]), identity.name)
        with self._dry_runs, entry:
            if self._until is Until.ONCE:
                self._run_one()
            else:
                self._run_lanes()
        return code_of(self._stop)

    def _lane(
        self,
        judge: Callable[[Study], Judged],
        work: Callable[[Study], object],
        at: set[str],
        idle: Callable[[], None] = lambda: None,
    ) -> Lane:
        return Lane(
            store=self._store,
            stop=self._stop,
            pools=self._pools,
            judge=judge,
            work=work,
            idle=idle,
            at=at,
        )

    def _run_one(self) -> None:
        """Work at one study to its end: the first that this worker can do."""

        def work(study: Study) -> None:
            if wants_dry_runs(study):
                self._foresee(study)
            self._work(study)

        def judge(study: Study) -> Judged:
            return Judged(takes=True) if is_predicted(study) else self._can(study)

        self._lane(judge, work, set()).take_one()

    def _run_lanes(self) -> None:
        drains = self._until is Until.DRAINED
        with ThreadPoolExecutor(2, thread_name_prefix="lane") as threads:
            lanes = [
                threads.submit(lane.run, drains=drains) for lane in (self._predicts, self._probes)
            ]
            try:
                while wait(lanes, LOOK_S, FIRST_EXCEPTION).not_done:  # signals come to this thread
                    for lane in lanes:
                        if lane.done():
                            lane.result()
            except BaseException as error:
                self._stop.request(f"the worker fails: {error!r}")
                raise
        for lane in lanes:
            lane.result()

    # What is for which lane

    def _for_dry_runs(self, study: Study) -> Judged:
        if study.question.script is not None:
            return Judged(takes=False)  # the command that asked has a worker of its own
        return Judged(takes=is_predicted(study) or wants_dry_runs(study))

    def _for_probes(self, study: Study) -> Judged:
        if is_predicted(study):
            return Judged(takes=False)
        can = self._can(study)
        on_cpu = study.question.cluster.gpu.device is Device.CPU
        if can.takes and on_cpu and wants_dry_runs(study) and not self._predicts.has_passed(study):
            return Judged(takes=False, again_s=AGAIN_S)  # its own dry runs would spoil its times
        return can

    def _can(self, study: Study) -> Judged:
        """Whether this machine can run its probes; a script only those run who were asked to."""
        if study.question.script is not None:
            return Judged(takes=False, why="the command that asked runs its script")
        site = self._options.site
        try:
            there = self._machine if site.is_here else together(site.machines())
            check_machine(study.question, study.terms.fidelity, there)
        except ProbeError as error:
            return Judged(takes=False, why=str(error))
        return Judged(takes=True)

    # Work

    def _work_dry(self, study: Study) -> None:
        self._looks = 0
        self._work(study) if is_predicted(study) else self._foresee(study)

    def _foresee(self, study: Study) -> None:
        self._run(study, replace(self._options, foresees=True))

    def _work(self, study: Study) -> None:
        self._run(study, self._options)

    def _run(self, study: Study, options: Options) -> None:
        Worker(
            self._store,
            study.id,
            stop=self._stop,
            options=options,
            dry_runs=self._dry_runs,
            name=self._name,
        ).run()

    def _end_idle(self) -> None:
        """End the process that dry-runs after a while: it holds some hundred MiB."""
        self._looks += 1
        if self._looks == IDLE_LOOKS:
            self._dry_runs.end()


def code_of(stop: StopRequest) -> int:
    """The exit code of a service that ends now, as of :meth:`Service.run`; says why it ends."""
    if why := stop.wait(0):
        log.info("%s", why)
        return 0 if stop.signal is SIGTERM or stop.is_from_within else INTERRUPTED
    return 0


def is_predicted(study: Study) -> bool:
    """Whether a study's own probes are dry runs."""
    return study.terms.fidelity is Fidelity.PREDICTED


def wants_dry_runs(study: Study) -> bool:
    """Whether a study that is to be probed has no answer yet, and dry runs would give it one.

    Raises:
        UsageError: the question has no legal settings.
    """
    return study.terms.fidelity in PROBED and not study.dry_runs and best_known(study) is None
