"""Requests in, answers out, whatever becomes of any of them.

Each dry run is a fork of this process, which has imported torch and transformers already: it
starts in milliseconds, its process group and accelerate's state are its own, and neither a
crash in C++ nor a run that does not end takes the others down. Where nobody is left to hear
an answer, all of them are ended. POSIX only.

The dry runs of one class of settings share a limit of CPU time, which is the same on a busy
machine, and one of wall time. Where a machine is so busy that the latter comes first, the answer
says so: it is no word on the settings. Both answers name what the dry run was at.
"""

import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

from workers.probe.dry.answer import answer, error_values
from workers.probe.dry.progress import Progress
from workers.probe.dry.request import class_of, id_of

ORPHANED = 111
"""Exit code of a dry run whose server is gone."""
LOOK_S = 1.0
"""Seconds between looks for who hears the answers."""


@dataclass(slots=True, kw_only=True)
class _Clock:
    """The time of the dry runs of one class, from the start of the first."""

    deadline: float
    """On the monotonic clock."""
    cpu_s: float = 0.0
    """CPU time of those that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A line that waits."""

    line: str
    id: str
    of: str
    """Its class."""


@dataclass(slots=True, kw_only=True)
class _Child:
    """A dry run under way."""

    asked: _Asked
    clock: _Clock
    process: ForkProcess
    answers: Connection
    progress: Progress

    @property
    def is_late(self) -> bool:
        """Whether its class has no time left."""
        return time.monotonic() >= self.clock.deadline


class Server:
    """Answers lines from a file descriptor until its end.

    Args:
        source: file descriptor of the requests, a line each.
        write: told each answer, a line of JSON without its end.
        is_heard: whether anybody still wants answers.
        limit_s: seconds of CPU time for the dry runs of a class: each may take what those that
            ended before it have left. So where processors are free a class has ended after as
            many seconds, however many dry runs are made at the same time.
        wall_s: seconds after the start of the first when what is left of a class is ended, where
            processors are not free.
        since: on the monotonic clock, when the first requests may have been sent: their classes'
            wall time counts from then.
        jobs: dry runs at the same time.
    """

    def __init__(
        self,
        source: int,
        write: Callable[[str], None],
        *,
        is_heard: Callable[[], bool],
        limit_s: float,
        wall_s: float,
        jobs: int,
        since: float | None = None,
    ) -> None:
        self._source, self._write, self._is_heard = source, write, is_heard
        self._limit_s, self._wall_s, self._jobs = limit_s, wall_s, jobs
        self._since = since
        self._waiting: deque[_Asked] = deque()
        self._running: list[_Child] = []
        self._clocks: dict[str, _Clock] = {}
        self._numbers = itertools.count()
        self._unread = b""
        self._ended = False

    def run(self) -> None:
        """Answer every line, in the order in which dry runs end.

        Raises:
            BrokenPipeError: nobody hears the answers; what ran was ended, what waited never ran.
        """
        try:
            while not self._ended or self._waiting or self._running:
                self._wait()
                if not self._is_heard():
                    raise BrokenPipeError("nobody hears the answers")
                for child in [c for c in self._running if c.answers.poll() or c.is_late]:
                    self._tell(child.asked.id, self._outcome(child))
                    self._running.remove(child)
                self._forget_clocks()
                while self._waiting and len(self._running) < self._jobs:
                    self._start(self._waiting.popleft())
                if self._running:
                    self._since = None
        finally:
            for child in self._running:
                child.process.kill()

    def _wait(self) -> None:
        """Until a request came, a dry run answered, died or is late, or it is time to look."""
        ends = (child.clock.deadline for child in self._running)
        left = min(ends, default=float("inf")) - time.monotonic()
        watched: list[Any] = [c.answers for c in self._running]
        if not self._ended:
            watched.append(self._source)
        timeout = min(LOOK_S, max(0.0, left))
        if self._source in multiprocessing.connection.wait(watched, timeout):
            self._read()

    def _read(self) -> None:
        found = os.read(self._source, 2**16)
        self._ended = not found
        *lines, self._unread = (self._unread + found).split(b"\n")
        if self._ended:
            lines.append(self._unread)
        decoded = (line.decode("utf-8", "replace") for line in lines)
        self._waiting.extend(self._asked(line) for line in decoded if line.strip())

    def _asked(self, line: str) -> _Asked:
        """A line that names no class is one of its own."""
        of = class_of(line) or f"line {next(self._numbers)}"
        return _Asked(line=line, id=id_of(line), of=of)

    def _forget_clocks(self) -> None:
        """A class that is asked for again has all its time again."""
        under_way = {child.asked.of for child in self._running} | {x.of for x in self._waiting}
        for of in self._clocks.keys() - under_way:
            del self._clocks[of]

    def _start(self, asked: _Asked) -> None:
        """Start a dry run, unless its class has no time left."""
        began = time.monotonic() if self._since is None else self._since
        new = _Clock(deadline=began + self._wall_s)
        clock = self._clocks.setdefault(asked.of, new)
        left_s, progress = self._limit_s - clock.cpu_s, Progress()
        if left_s <= 0 or time.monotonic() >= clock.deadline:
            self._tell(asked.id, self._too_long(clock, progress))
            return
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_answer_through,
            args=(asked.line, sender, os.getpid(), left_s, progress),
            daemon=True,
        )
        process.start()
        sender.close()
        child = _Child(
            asked=asked, clock=clock, process=process, answers=receiver, progress=progress
        )
        self._running.append(child)

    def _outcome(self, child: _Child) -> dict[str, Any]:
        """The child's answer, or what its silence means."""
        spoke, clock = child.answers.poll(), child.clock
        try:
            if spoke:
                cpu_s, found = json.loads(child.answers.recv_bytes())
                clock.cpu_s += cpu_s
                return dict(found)
        except EOFError:  # it died without a word
            child.process.join()
            if child.process.exitcode != -signal.SIGPROF:
                at, message = child.progress, f"ended with exit code {child.process.exitcode}"
                return error_values("Crashed", message, operator=at.operator, phase=at.phase)
            clock.cpu_s = self._limit_s
        finally:
            child.process.kill()
            child.process.join()
            child.answers.close()
        return self._too_long(clock, child.progress)

    def _too_long(self, clock: _Clock, at: Progress) -> dict[str, Any]:
        """What is said of a class that has no CPU time left, or else no wall time."""
        limit_s = self._limit_s if clock.cpu_s >= self._limit_s else 0.0
        message = f"dry runs of this class take more than {limit_s:g} s of CPU time"
        if not limit_s:
            message = f"not done in {self._wall_s:g} s on this machine, which may be busy"
        where = {"operator": at.operator, "phase": at.phase}
        return error_values("TimeLimit", message, rule="time_limit", limit_s=limit_s, **where)

    def _tell(self, name: str, values: dict[str, Any]) -> None:
        self._write(json.dumps({"id": name, **values}))


def _answer_through(
    line: str, answers: Connection, server: int, limit_s: float, progress: Progress
) -> None:
    """Answer with the CPU time that it took; at the limit this process ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # also ends a call that never returns
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    warnings.simplefilter("ignore")  # of other libraries: none of them is an error here
    started = time.process_time()
    found = answer(line, progress)
    answers.send_bytes(json.dumps([time.process_time() - started, found]).encode())


def _end_with(server: int) -> None:
    """End this process when its server is gone."""
    while os.getppid() == server:
        time.sleep(LOOK_S)
    os._exit(ORPHANED)
