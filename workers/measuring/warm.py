"""Ranks that stay for the next probe: torch is imported and devices are open by then."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tuner.errors import ProbeError
from tuner.measurement import RAN, Fidelity, Measurement, Outcome
from workers.launchers.base import Ended, Job, Launcher, RankEnd, Run, Why
from workers.launchers.local import LocalLauncher, series_argv
from workers.measuring.device_check import CHECK_DEADLINE_S, CheckedDevices, Look, look_of
from workers.measuring.files import record_path, write_spec
from workers.measuring.folders import default_probes_folder, make_folder, remove_folder
from workers.measuring.merge import merge
from workers.measuring.records import BadRecord, RankRecord, read_records
from workers.probe.orders import END, SPENT, header

IDLE_S = 30.0
"""Without a probe, after which ranks are ended: longer than planning takes, and soon enough for
whoever wants their memory."""
FEED_S = 0.5
"""Between two looks at ranks without a probe: they end when they hear nothing for long."""
POLL_S = 0.05
"""Between two looks at a probe: little beside a warm one's second."""

log = logging.getLogger(__name__)

Records = Sequence[RankRecord | BadRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What ranks are started as. Probes of one kind can share them."""

    ranks: int
    """Processes."""
    world_size: int
    """Ranks that they are, or that the one of them plays with."""
    device: str
    """cpu or cuda."""
    nodes: int = 1
    """As in :class:`workers.launchers.base.Job`."""
    fidelity: Fidelity = Fidelity.MEASURED
    """measured or emulated."""
    sharing: int | None = None
    """As in :class:`workers.launchers.base.Job`."""
    visible: tuple[str, ...] = ()
    """As there."""

    @property
    def devices(self) -> tuple[object, ...]:
        """What tells its devices from others of the same launcher."""
        return self.device, self.ranks, self.nodes, self.visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What became of one probe."""

    measurement: Measurement
    """Of all its ranks together."""
    records: Records = ()
    """By rank; none when no rank could be started."""


@dataclass(slots=True, kw_only=True)
class WarmRanks:
    """Ranks that run one probe after another, as a context; at its end none is left.

    They are started for the first probe, and anew after one that did not end well, one of
    another kind, or one that left memory behind. New ranks look at their devices before the first
    probe on GPUs, and after a probe that lost one: where none can be run, that is no probe's
    outcome. While there is no probe ranks are fed from a thread, and ended when they are idle for
    long.
    """

    launcher: Launcher = field(default_factory=LocalLauncher)
    """Starts ranks."""
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank, which follows the orders in a folder."""
    checked: CheckedDevices | None = None
    """GPUs that were looked at, here and by others of this process; those that were not are, before
    the first probe. ``None`` to look after a lost device alone."""
    folder: Path = field(default_factory=default_probes_folder)
    """For the folders of runs."""
    keep: bool = True
    """Whether ranks stay for another probe; otherwise each probe has its own."""
    idle_s: float = IDLE_S
    """Seconds without a probe after which they are ended."""
    _kind: Kind | None = None
    _run: Run | None = None
    _place: Path = Path()
    _orders: int = 0
    _lost_a_device: bool = False
    _idle_since: float = math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        threading.Thread(target=self._tend, daemon=True, name="warm ranks").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self.end()

    @property
    def alive(self) -> bool:
        """Whether there are ranks."""
        return self._run is not None

    def measure(
        self,
        kind: Kind,
        spec: Mapping[str, Any],
        *,
        deadline_s: float,
        pause: Callable[[float], str],
    ) -> Probed:
        """Run one probe, on the ranks that are there or on new ones.

        Args:
            kind: of its ranks.
            spec: of the probe.
            deadline_s: seconds after which its ranks are ended.
            pause: waits for so many seconds; why the probe must be given up, empty while it
                must not. Its ranks are ended then, and the outcome is ``cancelled``.

        Raises:
            ProbeError: there is no place for its files, a rank cannot be killed, or the devices
                cannot be used; then nothing was found out about the spec.
        """
        with self._lock:
            try:
                found = self._measure(kind, spec, deadline_s, pause)
            except OSError as error:
                self._end()
                detail = f"the ranks could not be started: {error}"
                return Probed(measurement=Measurement(outcome=Outcome.CRASHED, detail=detail))
            except BaseException:
                self._end()
                raise
            self._idle_since = time.monotonic()
            return found

    def end(self) -> None:
        """End the ranks, if there are any; returns when none is left.

        Raises:
            ProbeError: a rank cannot be killed.
        """
        with self._lock:
            self._end()

    def _measure(
        self,
        kind: Kind,
        spec: Mapping[str, Any],
        deadline_s: float,
        pause: Callable[[float], str],
    ) -> Probed:
        if kind != self._kind or not self._usable():
            self._end()
        if self._run is None and self._wants_look(kind) and not self._look(kind, pause):
            return _given_up()
        began = time.monotonic()  # that look is no probe's time
        order, run = self._give_order(kind, spec, is_last=not self.keep)
        ended = self._supervise(run, order, kind.ranks, began + deadline_s, pause)
        records = read_records(order, kind.ranks)
        measurement = merge(
            _as_of(ended, records, wall_s=time.monotonic() - began),
            records,
            {rank: text.split(header(order.name))[-1] for rank, text in run.logs().items()},
            deadline_s=deadline_s,
        )
        if ended is not None:
            self._end()
        self._lost_a_device |= measurement.outcome is Outcome.DEVICE_LOST
        remove_folder(order)
        if self._may_be_others(kind, measurement) and not self._look(kind, pause):
            return _given_up()
        return Probed(measurement=measurement, records=records)

    def look(self, kind: Kind, pause: Callable[[float], str]) -> Look | None:
        """Have ranks look at their devices, now or not at all; they stay for a probe.

        Args:
            kind: of the ranks.
            pause: as of :meth:`measure`.

        Returns:
            What they found; ``None`` if it was given up.

        Raises:
            ProbeError: there is no place for their files, or a rank cannot be killed.
        """
        with self._lock:
            try:
                self._end()
                found = self._looked(kind, pause)
            except OSError as error:
                self._end()
                return Look(why_unusable=f"the ranks could not be started: {error}")
            except BaseException:
                self._end()
                raise
            self._idle_since = time.monotonic()
            return found

    def check(self, kind: Kind, pause: Callable[[float], str]) -> bool:
        """Look at GPUs that were not looked at, for whoever runs other processes on them.

        Returns:
            Whether the devices are known to be well; otherwise the look was given up.

        Raises:
            ProbeError: no probe can be run on them.
        """
        with self._lock:
            try:
                return not self._wants_look(kind) or self._look(kind, pause)
            except OSError as error:
                raise ProbeError(f"the ranks could not be started: {error}") from error
            finally:
                self._end()

    def _wants_look(self, kind: Kind) -> bool:
        is_new = self.checked is not None and not self.checked.are_well(kind.devices)
        return self._lost_a_device or (is_new and kind.device == "cuda")

    def _may_be_others(self, kind: Kind, found: Measurement) -> bool:
        """Whether memory may have run out because others had taken some of it meanwhile.

        It cannot where tensors alone, without the context and communicators, would have gone over
        what was allowed.
        """
        if self.checked is None or kind.device != "cuda" or found.oom is None:
            return False
        return found.oom.allocated_bytes + found.oom.requested_bytes <= found.oom.limit_bytes

    def _look(self, kind: Kind, pause: Callable[[float], str]) -> bool:
        """Have new ranks look at their devices; whether they did, and were not given up.

        Raises:
            ProbeError: no probe can be run on them.
        """
        found = self._looked(kind, pause)
        if found is not None and found.why_unusable:
            self._end()
            again = "a device was lost, and is not there again: " if self._lost_a_device else ""
            raise ProbeError(f"{again or 'no probe can be run: '}{found.why_unusable}")
        if found is not None:
            self._lost_a_device = False
            if self.checked is not None:
                self.checked.note(kind.devices)
        return found is not None

    def _looked(self, kind: Kind, pause: Callable[[float], str]) -> Look | None:
        """What new ranks see of their devices; they stay, unless something is wrong with them."""
        assert self._run is None
        order, run = self._give_order(kind, {"check": kind.device}, is_last=False)
        until, ended = time.monotonic() + CHECK_DEADLINE_S, None
        paths = [record_path(order, rank) for rank in range(kind.ranks)]
        while not all(path.exists() for path in paths) and (ended := run.poll()) is None:
            if pause(POLL_S):
                self._end()
                return None
            if time.monotonic() > until:
                ended = replace(run.cancel(), why=Why.DEADLINE)
                break
        found = look_of(order, kind.ranks, ended, self._place)
        if ended is not None or found.why_unusable:
            self._end()
        else:
            remove_folder(order)
        return found

    def _usable(self) -> bool:
        """Whether the ranks of the last probe are there, and none has left memory behind."""
        if self._run is None or (self._place / SPENT).exists():
            return False
        return self._run.poll() is None

    def _give_order(
        self, kind: Kind, spec: Mapping[str, Any], *, is_last: bool
    ) -> tuple[Path, Run]:
        """Write the order, and start ranks where there are none: its folder, and the run."""
        if self._run is None:
            self._place, self._kind = make_folder(self.folder, "ranks"), kind
        self._orders += 1
        order = self._place / f"{self._orders:08d}"
        order.mkdir()
        write_spec(order, spec)
        if is_last:
            (self._place / END).touch()
        if self._run is None:
            job = Job(
                argv=self.argv(self._place),
                directory=self._place,
                ranks=kind.ranks,
                device=kind.device,
                deadline_s=math.inf,  # each probe has its own
                nodes=kind.nodes,
                sharing=kind.sharing,
                visible=kind.visible,
            )
            self._run = self.launcher.start(job)
        return order, self._run

    def _supervise(
        self, run: Run, order: Path, ranks: int, until: float, pause: Callable[[float], str]
    ) -> Ended | None:
        """Wait for the end of a probe: how its ranks ended, ``None`` if they stay."""
        while (ended := run.poll()) is None:
            if self.keep and all(record_path(order, rank).exists() for rank in range(ranks)):
                records = read_records(order, ranks)
                if all(map(_is_well, records)):
                    return None
                if all(isinstance(r, BadRecord) or _is_well(r) for r in records):
                    return replace(run.cancel(), why=Why.ENDED)  # no rank knows of a fault
            if pause(POLL_S):
                return run.cancel()
            if time.monotonic() > until:
                return replace(run.cancel(), why=Why.DEADLINE)
        return ended

    def _end(self) -> None:
        run, self._run = self._run, None
        try:
            if run is not None:
                run.cancel()
        finally:
            if self._place != Path():
                remove_folder(self._place)
                self._place = Path()

    def _tend(self) -> None:
        """Feed ranks without a probe, and end them when they are idle for long."""
        while not self._done.wait(FEED_S):
            if not self._lock.acquire(blocking=False):
                continue  # a probe is running, and supervised
            try:
                idle_s = time.monotonic() - self._idle_since
                if self._run is not None and (self._run.poll() or idle_s > self.idle_s):
                    self._end()
            except (ProbeError, OSError) as error:  # the others are to be fed all the same
                log.warning("%s", error)
            finally:
                self._lock.release()


def _given_up() -> Probed:
    detail = "it was given up while the devices were looked at"
    return Probed(measurement=Measurement(outcome=Outcome.CANCELLED, detail=detail))


def _is_well(record: RankRecord | BadRecord) -> bool:
    return isinstance(record, RankRecord) and record.outcome in RAN


def _as_of(ended: Ended | None, records: Records, *, wall_s: float) -> Ended:
    """How the ranks ended as far as one probe is concerned.

    A rank with a record was done with the probe: if it was stopped, that was afterwards. Where
    all records are well, so is the end.
    """
    if ended is None or (all(map(_is_well, records)) and any(rank.stopped for rank in ended.ranks)):
        now = time.time()
        ends = (
            RankEnd(rank=rank, code=0, ended_at=now, stopped=False) for rank in range(len(records))
        )
        return Ended(why=Why.ENDED, ranks=tuple(ends), wall_s=wall_s)
    ranks = tuple(
        end
        if not end.stopped or (isinstance(record, BadRecord) and record.missing)
        else replace(end, code=0, stopped=False)
        for end, record in zip(ended.ranks, records, strict=True)
    )
    return replace(ended, ranks=ranks, wall_s=wall_s)
