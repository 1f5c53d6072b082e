"""Runs a study's probes on a worker's devices: claims, renews, measures and records them.

An :class:`Executor` has a :class:`Workplace` for each probe that can run at a time. A probe that is
claimed runs in a thread of its own, under a lease that another thread renews; a workplace keeps its
ranks for the next probe, and its devices' locks for as long as it has ranks.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Self

from tuner.client.advance import kept_dry_run, measurement_of, plan_here
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Study
from tuner.core.words import number_text, probe_name
from tuner.dryrun import DryRun, DryRunner, DryRunStoppedError, NotDryRunError
from tuner.errors import ProbeError, StoreError, TunerError
from tuner.logs import bound
from tuner.machine import together
from tuner.store import Claim, Store, WorkerIdentity
from workers.devices import (
    DeviceLocks,
    DeviceShare,
    check_free_memory,
    check_machine,
    default_lock_path,
    shares,
)
from workers.launchers.local import series_argv
from workers.launchers.site import LocalSite, Site, rehearsal_site
from workers.lease import RECORD_PATIENCE_S, Lease, retried
from workers.measuring.measure import kind_of, measure
from workers.measuring.ranks import CheckedDevices, Kind, WarmRanks
from workers.measuring.records import (
    RESULT,
    default_probes_folder,
    make_folder,
    write_json,
)
from workers.scripts.probe import ScriptRun, check_script_probe
from workers.stop import StopRequest

# For one probe, unless the user gives more time. Its timed steps take 10 s or three steps; a hang
# must not take the night.
PROBE_DEADLINE_S = 600.0
# For another study's probe on this machine to end, between two looks at one's own study.
LOCKS_S = 2.0
# For which a worker keeps its ranks though another waits for their devices: starting them anew for
# each probe would take longer than the probes.
TURN_S = 30.0
# For another study to acquire the devices that it waits for: it looks more often than this.
ROOM_S = 0.2
# Between two looks for a request to stop.
LOOK_S = 0.1
# Between two lines about whom one waits for.
TOLD_S = 60.0
# Between two tries to acquire devices.
ACQUIRE_S = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    queued_only: bool = False
    serves: bool = False
    """Set where other studies may want this worker, and other workers its study: a study that waits
    for others is left, and one that cannot be done here is queued again."""
    predicts: bool = False
    """Make only the dry runs that a prediction wants, whatever the study's fidelity."""
    fidelity: Fidelity | None = None
    """Fidelity of the probes to run; by default the one that the study's limits name."""
    folder: Path = field(default_factory=default_probes_folder)
    lock: Path = field(default_factory=default_lock_path)
    """Path of the locks of this machine's devices, which are held while ranks run."""
    site: Site = field(default_factory=LocalSite)
    deadline_s: float = PROBE_DEADLINE_S
    checked: CheckedDevices = field(default_factory=CheckedDevices)
    """GPUs that were looked at, by all workers of this process."""
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank of the probes that are ordered in a folder."""
    cold: bool = False
    dry_runner: Callable[[], DryRunner] = DryRunner  # makes the process that dry-runs
    guards: bool = True
    """Train a small replica of each finalist that was probed, unless its check is kept."""
    replica_argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank of the replicas in a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    study: Study
    claim: Claim
    lease: Lease
    pause: Callable[[float], str]
    """Waits for some seconds; the reason to give the probe up, empty while there is none."""
    since: float  # the moment of the claim, by the monotonic clock
    give_up_above_s: float | None = None
    """Seconds of an optimizer step above which it is not timed further, if there are such."""


@dataclass(slots=True, kw_only=True, eq=False)
class Workplace:
    """Devices on which one probe runs at a time, with the ranks that stay for the next one."""

    measure: Callable[[Task], Measurement]
    """Runs a probe; may raise ProbeError where none can be run here."""
    own: DeviceLocks  # devices that every probe here holds
    others: DeviceLocks  # the rest of the machine, for a probe that must have no neighbours
    ranks: WarmRanks | None = None
    find: Callable[[], DeviceLocks] | None = None
    """Finds the devices anew once one was lost, where others may take its place."""
    is_alone: bool = False
    held_since: float = inf  # the moment when its devices were acquired, by the monotonic clock
    has_lost_a_device: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        return (*self.own.devices, *self.others.devices) if self.is_alone else self.own.devices

    @property
    def has_ranks(self) -> bool:
        return self.ranks is not None and self.ranks.alive

    def acquire(self, *, alone: bool, waits: bool) -> bool:
        """Acquires the devices for its next probe, with ``alone`` all of the machine's; true once
        it has them. With ``waits`` others are told, and what is free is kept meanwhile."""
        self.is_alone = alone
        if self.has_lost_a_device and self.find is not None:
            self.own, self.has_lost_a_device = self.find(), False
        if not alone:
            self.others.release()
        locks = (self.own, self.others) if alone else (self.own,)
        was_held = self.own.held
        is_held = all(one.acquire() if waits else one.acquire_at_once() for one in locks)
        if is_held and not was_held:
            self.held_since = time.monotonic()
        return is_held

    @property
    def has_had_its_turn(self) -> bool:
        """True where another waits for devices that idle ranks have had for a while."""
        is_wanted = self.has_ranks and self.own.wanted
        return is_wanted and time.monotonic() - self.held_since >= TURN_S

    def release(self) -> None:
        """Releases the devices, unless there are ranks, which hold their memory."""
        self.others.release()
        if not self.has_ranks:
            self.own.release()

    def end_ranks(self) -> None:
        if self.ranks is not None:
            self.ranks.end()
        self.release()


class Executor:
    """Runs a worker's probes, as a context; at its end none runs any more."""

    def __init__(
        self,
        store: Store,
        stop: StopRequest,
        identity: WorkerIdentity,
        options: WorkerOptions,
        dry_runner: DryRunner,
    ) -> None:
        self.workplaces: list[Workplace] = []
        """The first one is for probes that must have no neighbours."""
        self._store = store
        self._stop = stop
        self._identity = identity
        self._options = options
        self._dry_runner = dry_runner
        self._fidelity: Fidelity | None = None
        self._running: dict[Future[None], tuple[Workplace, Task]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._ranks: list[WarmRanks] = []
        self._over = ""  # why all probes are to be given up, beside a request to stop
        self.is_waiting = False  # while other workers have the devices that were asked for
        self._told_at = -inf
        self._last: Workplace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # the error that ended the worker is the one to be told
        with suppress(*([TunerError] if error else [])):
            self.close()

    # Workplaces

    def prepare(self, study: Study, fidelity: Fidelity) -> None:
        """Has workplaces for a study's probes of a fidelity, in place of those there were: one for
        each probe that can run at once.
        """
        if fidelity is self._fidelity:
            return
        if fidelity is Fidelity.PREDICTED:
            self._dry_runner.start()  # it imports torch while the study is planned
            nothing = DeviceLocks(None, ())  # nothing of a dry run is timed
            self.open([Workplace(measure=self._dry_run, own=nothing, others=nothing)])
            self._fidelity = fidelity
            return
        options, site, question = self._options, self._options.site, study.question
        there = None if site.is_here else together(site.machines())
        substitutes = check_machine(question, fidelity, there)
        checked: CheckedDevices | None = options.checked
        if fidelity is Fidelity.REHEARSED:  # whatever is beside: its GPU is none that could be lost
            of_script = question.script is not None
            site, checked = rehearsal_site(question.cluster, of_script=of_script), None
        devices = site.devices()
        kind = kind_of(question.cluster, fidelity, len(site.machines()))
        # ranks that somebody else's manager starts have all of its nodes at once, and nobody else
        # wants them: each node's ranks see the devices of their node
        whole = DeviceShare(own=tuple(device.name for device in devices))
        parts = shares(kind, devices) if site.is_here else (whole,)
        sharing = max(kind.sharing or kind.ranks, len(parts))
        lock = options.lock if site.is_here else None
        probe = _script_probe if question.script else _probe

        def find() -> DeviceLocks:
            return DeviceLocks(None, [device.name for device in site.devices()])

        workplaces, all_ranks = [], []
        for part in parts[:1] if options.queued_only else parts:
            ranks = WarmRanks(
                launcher=site.launcher,
                argv=options.argv,
                folder=options.folder,
                keep=not options.cold,
                checked=checked,
            )
            workplaces.append(
                Workplace(
                    measure=partial(
                        probe,
                        ranks=ranks,
                        kind=replace(kind, visible=part.visible, sharing=sharing),
                        deadline_s=options.deadline_s,
                        stands_in=substitutes,
                    ),
                    own=DeviceLocks(lock, part.own),
                    others=DeviceLocks(lock, part.rest),
                    ranks=ranks,
                    find=None if site.is_here else find,
                )
            )
            all_ranks.append(ranks)
        self.open(workplaces, all_ranks)
        self._fidelity = fidelity

    def open(self, workplaces: Sequence[Workplace], ranks: Sequence[WarmRanks] = ()) -> None:
        """Has these workplaces, with ranks to be closed with them, in place of those there were."""
        self.close()
        self.workplaces, self._ranks = list(workplaces), list(ranks)
        for one in self._ranks:
            one.__enter__()
        self._threads = ThreadPoolExecutor(len(workplaces), thread_name_prefix="probe")

    def close(self) -> None:
        """Gives up what runs, ends all ranks, and has no workplaces."""
        errors: list[TunerError] = []
        closing = [partial(self.give_up, "the worker ends")]
        closing += [partial(one.__exit__, None, None, None) for one in self._ranks]
        for close in closing:
            try:
                close()
            except TunerError as error:
                errors.append(error)
        if self._threads is not None:
            self._threads.shutdown()
        for workplace in self.workplaces:
            workplace.release()
        self.workplaces, self._ranks, self._threads, self._fidelity = [], [], None, None
        if errors:
            raise errors[0]

    def _dry_run(self, task: Task) -> Measurement:
        """Dry-runs the layout of a claim's configuration, or takes the dry run that is kept."""
        question, settings = task.study.question, task.claim.probe.request.settings
        began = time.monotonic()
        find = partial(kept_dry_run, self._store, question, task.claim.probe.request)
        try:
            found = retried(find, self._stop)
            if found is None:
                plan = plan_here(question, settings)
                try:
                    (found,) = self._dry_runner.made([plan], lambda: task.pause(0))
                except ProbeError as error:  # a process that died under a request is its crash
                    found = DryRun.from_answers(plan, (), why_none=str(error))
                if found.is_kept:
                    retried(partial(self._store.keep_dry_run, found), self._stop)
            wall_s = time.monotonic() - began
            return measurement_of(question, settings, found, wall_s=wall_s)
        except DryRunStoppedError as error:
            return Measurement(outcome=Outcome.CANCELLED, detail=str(error))
        except NotDryRunError as error:
            raise ProbeError(str(error)) from error

    # A probe's way: claimed, run under a lease, recorded or given back

    def claim(self, study: Study, fidelity: Fidelity, workplace: Workplace) -> Task | None:
        """Claims the study's oldest queued probe; ``None`` when others have it, or a device."""
        claimed_at = time.monotonic()
        devices = workplace.devices
        take = partial(self._store.claim, study.id, self._identity, fidelity, devices)
        claim = retried(take, self._stop)
        if claim is None:
            # nothing was there for these devices: another workplace is asked before them
            self._last = workplace
            workplace.release()
            return None
        lease = Lease(partial(self._store.beat, claim), claimed_at=claimed_at)

        def pause(seconds: float) -> str:
            return self._stop.wait(seconds) or self._over or lease.over

        since = time.monotonic()
        return Task(study=study, claim=claim, lease=lease, pause=pause, since=since)

    def start(self, workplace: Workplace, task: Task) -> None:
        assert self._threads is not None
        self._running[self._threads.submit(self._run, workplace, task)] = workplace, task

    def give_back(self, claim: Claim, why: str) -> None:
        given = retried(partial(self._store.give_back, claim, why), self._stop)
        lost = "" if given else " (the claim was lost)"
        log.info("%s of %s: %s%s", probe_name(claim.probe), claim.study_id, why, lost)

    def _run(self, workplace: Workplace, task: Task) -> None:
        claim = task.claim
        about = bound(
            study=claim.study_id, probe=number_text(claim.probe.id), attempt=claim.attempt_id
        )
        try:
            with task.lease, about:
                if workplace.ranks is not None and self._options.site.is_here:
                    check_free_memory(task.study.question, claim.probe.request)
                measurement = workplace.measure(task)
                workplace.has_lost_a_device |= measurement.outcome is Outcome.DEVICE_LOST
                if measurement.outcome is Outcome.CANCELLED:
                    self.give_back(claim, task.pause(0) or "it was given up")
                else:
                    self._record(claim, measurement)
        except ProbeError as error:
            self.give_back(claim, str(error))
            raise
        finally:
            workplace.release()

    def _record(self, claim: Claim, measurement: Measurement) -> None:
        try:
            record = partial(self._store.record, claim, measurement)
            recorded = retried(record, self._stop, RECORD_PATIENCE_S)
        except TunerError as error:
            folder = make_folder(self._options.folder, str(claim.probe.row_id))
            write_json(folder / RESULT, measurement.as_dict())
            kept = folder.rename(folder.with_name(f"kept-{folder.name}"))  # no worker removes it
            raise StoreError(f"{error}; a result is kept in {kept}") from error
        text = f"{measurement.outcome} after {measurement.wall_s:.1f} s"
        if measurement.detail:
            text += f": {measurement.detail}"
        if not recorded:
            text += " (not recorded: the claim was lost)"
        name, settings = probe_name(claim.probe), claim.probe.request.settings
        log.info("%s of %s: %s [%s]", name, claim.study_id, text, settings)

    # Probes that run

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    @property
    def is_full(self) -> bool:
        return bool(self.workplaces) and len(self._running) == len(self.workplaces)

    @property
    def running_s(self) -> list[float]:
        now = time.monotonic()
        return [now - task.since for _, task in self._running.values()]

    def wait(self, seconds: float) -> None:
        """Waits until a probe ends, but no longer, and not on when a stop is requested; raises what
        has kept a probe from being run or recorded."""
        until = time.monotonic() + seconds
        while not self._collect() and not self._stop.wait(0):
            left = min(LOOK_S, until - time.monotonic())
            if left <= 0:
                return
            if self._running:
                wait(self._running, left, FIRST_COMPLETED)
            else:
                self._stop.wait(left)

    def give_up(self, why: str) -> None:
        """Has what runs given back; returns, or raises as :meth:`wait`, when nothing runs."""
        self._over = why
        wait(self._running)
        self._over = ""
        self._collect()

    def _collect(self) -> bool:
        """True if a probe has ended since the last look; raises what it has raised."""
        ended = [future for future in self._running if future.done()]
        errors = [error for future in ended if (error := future.exception())]
        for future in ended:
            del self._running[future]
        for error in errors[1:]:
            log.warning("%s", error)
        if errors:
            raise errors[0]
        return bool(ended)

    # Locks of devices

    def acquire(self, *, alone: bool) -> Workplace | None:
        """A free workplace with its devices; ``None`` after a while, for the study may change. With
        ``alone`` it has the machine for itself, also before others of these workplaces."""
        if alone and self.is_busy:
            self.wait(LOCKS_S)
            return None
        until = time.monotonic() + LOCKS_S
        while (found := self._first(alone=alone)) is None:
            self.is_waiting = True
            if time.monotonic() >= self._told_at + TOLD_S:
                self._told_at = time.monotonic()
                log.warning("waiting for %s on this machine", self.holder)
            if self._stop.wait(ACQUIRE_S) or time.monotonic() > until:
                return None
            # what ended meanwhile has devices too, and they are free now
            if self._collect():
                return None
        self.is_waiting, self._told_at = False, -inf
        for other in self._free():
            if other is not found:
                other.release()
        return found

    @property
    def holder(self) -> str:
        locks = (one for place in self._free() for one in (place.own, place.others))
        return next((who for one in locks if (who := one.holder)), "a worker")

    def can_start(self) -> bool:
        """Tells, and holds the devices, if another probe could begin at once."""
        return any(one.acquire(alone=False, waits=False) for one in self._free())

    def make_room(self) -> None:
        """Releases devices without ranks, which hold memory; ends those that another waits for."""
        for workplace in self._free():
            if workplace.has_had_its_turn:
                workplace.end_ranks()
                self._stop.wait(ROOM_S)
            elif not workplace.has_ranks and not self.is_waiting:
                workplace.release()

    def release(self) -> None:
        """Waits for no device any more, since there is nothing to run."""
        self.is_waiting = False
        for workplace in self._free():
            workplace.release()

    def end_ranks(self) -> None:
        """Ends the ranks of all free workplaces, and releases their devices."""
        for workplace in self._free():
            workplace.end_ranks()

    def _first(self, *, alone: bool) -> Workplace | None:
        if alone:
            first, *others = self.workplaces
            for other in others:
                other.end_ranks()
            return first if first.acquire(alone=True, waits=True) else None
        free = self._free()
        return next((one for one in free if one.acquire(alone=False, waits=True)), None)

    def _free(self) -> list[Workplace]:
        busy = [workplace for workplace, _ in self._running.values()]
        free = [workplace for workplace in self.workplaces if workplace not in busy]
        return sorted(free, key=lambda workplace: workplace is self._last)


def _probe(
    task: Task, *, ranks: WarmRanks, kind: Kind, deadline_s: float, stands_in: bool
) -> Measurement:
    return measure(
        task.study,
        task.claim.probe,
        ranks,
        kind=kind,
        stands_in=stands_in,
        deadline_s=deadline_s,
        give_up_above_s=task.give_up_above_s,
        pause=task.pause,
    )


def _script_probe(
    task: Task, *, ranks: WarmRanks, kind: Kind, deadline_s: float, stands_in: bool
) -> Measurement:
    """Runs the study's script, whose ranks are its own; others look at its GPUs before, if it has
    any."""
    request, question = task.claim.probe.request, task.study.question
    settings, is_rehearsed = request.settings, request.fidelity is Fidelity.REHEARSED
    if not is_rehearsed and not ranks.check(kind, task.pause):
        return Measurement(outcome=Outcome.CANCELLED)
    run = ScriptRun(
        launcher=ranks.launcher,
        folder=ranks.folder,
        visible=kind.visible,
        deadline_s=deadline_s,
        nodes=kind.nodes,
    )
    if is_rehearsed:
        return run.rehearse(question, settings, task.pause)
    found = run.measure(question, settings, task.pause)
    return check_script_probe(task.study, settings, found)
