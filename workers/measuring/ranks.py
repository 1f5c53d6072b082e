"""Ranks that stay for the next probe: torch is imported and devices are open by then.

New ranks look at their devices first (``workers/probe/check.py``): where no probe can be run on
them, that is no probe's outcome.
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil

from tuner.core.measurement import RAN, Fidelity, Measurement, Outcome
from tuner.errors import ProbeError
from tuner.machine import is_rationed, usable_cores
from workers.launchers.base import Ended, Job, Launcher, RankEnd, Run, Why
from workers.launchers.local import LocalLauncher, series_argv
from workers.measuring.merge import merge
from workers.measuring.records import (
    BadRecord,
    RankRecord,
    Record,
    default_probes_folder,
    log_path,
    log_tail,
    make_folder,
    read_records,
    record_path,
    remove_folder,
    write_json,
)
from workers.probe.orders import END, SPEC, SPENT, header

# Without a probe, after which ranks are ended: longer than planning takes, and soon enough for
# whoever wants their memory.
IDLE_S = 30.0
# Between two looks at ranks without a probe: they end when they hear nothing for long.
FEED_S = 0.5
# Between two looks at a probe: little beside a warm one's second.
POLL_S = 0.05
# For importing torch, one small product and a collective, which has 60 s of its own; a device that
# hangs is not one to go on with.
CHECK_DEADLINE_S = 180.0
# For so long devices that were found to be well are not looked at again: of several requests in a
# row the first alone pays for it.
HOLDS_S = 600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The traits of ranks at their start. Probes of one kind can share them."""

    ranks: int
    world_size: int  # ranks that they are, or that the one of them plays with
    device: str
    nodes: int = 1  # machines that they are spread over
    fidelity: Fidelity = Fidelity.MEASURED
    sharing: int | None = None
    """Ranks that share a node's cores, as in :class:`workers.launchers.base.Job`."""
    visible: tuple[str, ...] = ()  # GPUs that they see, as there

    @property
    def devices(self) -> tuple[object, ...]:
        """A key of its devices among those of the same launcher."""
        return self.device, self.ranks, self.nodes, self.visible


# Devices that were found to be well, and when, by the monotonic clock.
CheckedDevices = dict[object, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswers:
    """What ranks answer to an order that is no probe's."""

    why_unusable: str = ""  # the reason why no probe can be run; empty if there is none
    records: tuple[Mapping[str, Any], ...] = ()  # by rank; empty for a rank that left none


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    measurement: Measurement
    records: Sequence[Record] = ()  # by rank; none when no rank could be started


@dataclass(slots=True, kw_only=True)
class WarmRanks:
    """Ranks that run one probe after another, as a context; at its end none is left.

    They are started for the first probe, and anew after one that did not end well, one of
    another kind, or one that left memory behind. They look at their devices before the first
    probe on GPUs, and after a probe that lost one. While there is no probe ranks are fed from a
    thread, and ended when they are idle for long.
    """

    launcher: Launcher = field(default_factory=LocalLauncher)
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank, which follows the orders in a folder."""
    checked: CheckedDevices | None = None
    """GPUs that were looked at, here and by others of this process; those that were not are, before
    the first probe. ``None`` to look after a lost device alone."""
    folder: Path = field(default_factory=default_probes_folder)
    keep: bool = True  # keep ranks for another probe; otherwise each probe has its own
    idle_s: float = IDLE_S  # seconds without a probe after which they are ended
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

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.end()

    @property
    def alive(self) -> bool:
        return self._run is not None

    def measure(
        self,
        kind: Kind,
        spec: Mapping[str, Any],
        *,
        deadline_s: float,
        pause: Callable[[float], str],
    ) -> Probed:
        """Runs one probe, on the ranks that are there or on new ones.

        Args:
            pause: waits for so many seconds; the reason to give the probe up, empty without
                one. Its ranks are ended then, and the outcome is ``cancelled``.

        Raises:
            ProbeError: there is no place for its files, a rank cannot be killed, or the devices
                cannot be used; then nothing was found out about the spec.
        """
        try:
            with self._in_use():
                return self._measure(kind, spec, deadline_s, pause)
        except OSError as error:
            detail = f"the ranks could not be started: {error}"
            return Probed(measurement=Measurement(outcome=Outcome.CRASHED, detail=detail))

    def ask(
        self,
        kind: Kind,
        order: Mapping[str, Any],
        pause: Callable[[float], str],
        *,
        deadline_s: float = CHECK_DEADLINE_S,
    ) -> RankAnswers | None:
        """Has new ranks look at their devices, or time a calibration's cases, as an order says
        (``workers/probe/orders.py``), now or not at all; they stay for a probe.

        Returns:
            Their answers; ``None`` if ``pause``, as of :meth:`measure`, has given it up.

        Raises:
            ProbeError: there is no place for their files, or a rank cannot be killed.
        """
        try:
            with self._in_use():
                self._end()
                return self._asked(kind, order, pause, deadline_s)
        except OSError as error:
            return RankAnswers(why_unusable=f"the ranks could not be started: {error}")

    def check(self, kind: Kind, pause: Callable[[float], str]) -> bool:
        """Looks at GPUs that were not looked at, for whoever runs other processes on them.

        Returns:
            True if the devices are known to be well; otherwise the look was given up.

        Raises:
            ProbeError: no probe can be run on them.
        """
        with self._lock:
            try:
                return not self._wants_look(kind) or self._are_well(kind, pause)
            except OSError as error:
                raise ProbeError(f"the ranks could not be started: {error}") from error
            finally:
                self._end()

    def end(self) -> None:
        """Ends the ranks, if there are any; returns when none is left. Raises ProbeError: a rank
        cannot be killed."""
        with self._lock:
            self._end()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Holds the lock; after an error no rank is left."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._end()
                raise
            self._idle_since = time.monotonic()

    # A probe

    def _measure(
        self, kind: Kind, spec: Mapping[str, Any], deadline_s: float, pause: Callable[[float], str]
    ) -> Probed:
        given_up = Measurement(
            outcome=Outcome.CANCELLED, detail="it was given up while the devices were looked at"
        )
        # ranks that ended meanwhile, or left memory behind, or are of another kind
        spent = self._run is None or (self._place / SPENT).exists() or self._run.poll() is not None
        if kind != self._kind or spent:
            self._end()
        if self._run is None and self._wants_look(kind) and not self._are_well(kind, pause):
            return Probed(measurement=given_up)
        began = time.monotonic()  # that look is no probe's time
        load = OtherLoad() if isinstance(self.launcher, LocalLauncher) else None
        order, run = self._give_order(kind, spec, is_last=not self.keep)
        ended = self._supervise(run, order, kind.ranks, began + deadline_s, pause)
        records = read_records(order, kind.ranks)
        measurement = merge(
            _end_of_probe(ended, records, wall_s=time.monotonic() - began),
            records,
            {rank: text.split(header(order.name))[-1] for rank, text in run.logs().items()},
            deadline_s=deadline_s,
        )
        if load is not None and measurement.outcome in RAN:
            hardware = {**measurement.hardware, **load.cores()}
            measurement = replace(measurement, hardware=hardware)
        if ended is not None:
            self._end()
        self._lost_a_device |= measurement.outcome is Outcome.DEVICE_LOST
        remove_folder(order)
        # Memory may have run out because others had taken some of it meanwhile, unless tensors
        # alone, without the context and communicators, would have gone over the limit.
        short = measurement.oom if self.checked is not None and kind.device == "cuda" else None
        in_doubt = short and short.allocated_bytes + short.requested_bytes <= short.limit_bytes
        if in_doubt and not self._are_well(kind, pause):
            return Probed(measurement=given_up)
        return Probed(measurement=measurement, records=records)

    def _give_order(
        self, kind: Kind, spec: Mapping[str, Any], *, is_last: bool
    ) -> tuple[Path, Run]:
        """Writes the order, and starts ranks where there are none: its folder, and the run."""
        if self._run is None:
            self._place, self._kind = make_folder(self.folder, "ranks"), kind
        self._orders += 1
        order = self._place / f"{self._orders:08d}"
        order.mkdir()
        write_json(order / SPEC, spec)
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
        """Waits for the end of a probe: how its ranks ended, ``None`` if they stay."""
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
        """Feeds ranks without a probe, and ends them when they are idle for long."""
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

    # A look at the devices

    def _wants_look(self, kind: Kind) -> bool:
        if self.checked is None or kind.device != "cuda":
            return self._lost_a_device
        looked_at = self.checked.get(kind.devices, -math.inf)
        return self._lost_a_device or time.monotonic() - looked_at >= HOLDS_S

    def _are_well(self, kind: Kind, pause: Callable[[float], str]) -> bool:
        """Has new ranks look at their devices; false if that was given up."""
        found = self._asked(kind, {"check": kind.device}, pause, CHECK_DEADLINE_S)
        if found is None:
            return False
        if found.why_unusable:
            self._end()
            again = "a device was lost, and is not there again" if self._lost_a_device else ""
            raise ProbeError(f"{again or 'no probe can be run'}: {found.why_unusable}")
        self._lost_a_device = False
        if self.checked is not None:
            self.checked[kind.devices] = time.monotonic()
        return True

    def _asked(
        self,
        kind: Kind,
        asked: Mapping[str, Any],
        pause: Callable[[float], str],
        deadline_s: float,
    ) -> RankAnswers | None:
        """The answers of new ranks; these stay, unless something is wrong with their devices."""
        assert self._run is None
        order, run = self._give_order(kind, asked, is_last=False)
        until, ended = time.monotonic() + deadline_s, None
        paths = [record_path(order, rank) for rank in range(kind.ranks)]
        while not all(path.exists() for path in paths) and (ended := run.poll()) is None:
            if pause(POLL_S):
                self._end()
                return None
            if time.monotonic() > until:
                ended = replace(run.cancel(), why=Why.DEADLINE)
                break
        records = tuple(_answer(path) for path in paths)
        why = _why_unusable(records, ended, self._place, deadline_s)
        found = RankAnswers(why_unusable=why, records=records)
        if ended is not None or found.why_unusable:
            self._end()
        else:
            remove_folder(order)
        return found


class OtherLoad:
    """What programs other than this worker and its ranks take of the cores that ranks may use, from
    its making on. Cores are those of the kernel's /proc/stat: of the whole machine, whatever the
    container."""

    def __init__(self) -> None:
        self._since, self._before_s = time.monotonic(), self._taken_s()

    def cores(self) -> dict[str, float]:
        """``cores``, those that ranks may use, and ``cores_of_others``, so many on average; nothing
        where a control group rations them: then what others take is not theirs."""
        if is_rationed():
            return {}
        wall_s = max(time.monotonic() - self._since, 1e-9)
        others = min(max((self._taken_s() - self._before_s) / wall_s, 0.0), usable_cores())
        return {"cores": usable_cores(), "cores_of_others": round(others, 2)}

    def _taken_s(self) -> float:
        # children first: one that ends meanwhile is counted twice then, and as nobody else's
        own = 0.0
        for process in (*psutil.Process().children(recursive=True), psutil.Process()):
            with suppress(psutil.Error):
                own += sum(process.cpu_times()[:4])  # with children that have ended
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        busy = ("user", "nice", "system", "irq", "softirq", "steal")
        return (
            sum(
                getattr(core, name, 0.0)
                for number, core in enumerate(psutil.cpu_times(percpu=True))
                if usable is None or number in usable
                for name in busy
            )
            - own
        )


def _is_well(record: Record) -> bool:
    return isinstance(record, RankRecord) and record.outcome in RAN


def _end_of_probe(ended: Ended | None, records: Sequence[Record], *, wall_s: float) -> Ended:
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


def _why_unusable(
    records: Sequence[Mapping[str, Any]], ended: Ended | None, folder: Path, deadline_s: float
) -> str:
    """The reason why no probe can be run, from the ranks' records, or their ends and logs."""
    # a rank whose own device is not well keeps the others from meeting it
    bad = sorted(
        (one["phase"] == "all-reduce", one["ended_at"], rank)
        for rank, one in enumerate(records)
        if one and one["outcome"] != "ok"
    )
    if bad:
        rank = bad[0][-1]
        error = records[rank]["error"]
        words = " ".join(error["message"].split())[:600]
        where = f"{error['type']} in {records[rank]['phase']}"
        own = words if error["type"] == "UnusableError" else f"{where}: {words}"
        return f"{own} (rank {rank})" if len(bad) < len(records) else own
    if ended is None:
        return ""
    for end in sorted(ended.ranks, key=lambda end: (end.stopped, end.rank)):
        if records[end.rank]:
            continue
        if end.stopped:
            if ended.why is Why.DEADLINE:
                return f"rank {end.rank} did not answer within {deadline_s:.0f} s"
            return ended.detail or f"rank {end.rank} was ended"
        lines = log_tail(log_path(folder, end.rank)).strip().splitlines()
        return f"rank {end.rank}: {lines[-1][:300] if lines else f'exit code {end.code}'}"
    return ""


def _answer(path: Path) -> Mapping[str, Any]:
    """A rank's record of what was no probe; empty where it cannot be read."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record if {"outcome", "phase", "ended_at", "hardware"} <= record.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}
