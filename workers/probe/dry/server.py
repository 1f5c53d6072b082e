"""Requests in, answers out, whatever becomes of any of them.

Each dry run is a fork of this process, which has imported torch and transformers already: it
starts in milliseconds, its process group and accelerate's state are its own, and neither a
crash in C++ nor a run that does not end takes the others down. Where nobody is left to hear
an answer, all of them are ended. POSIX only.
"""

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
from workers.probe.dry.request import id_of

ORPHANED = 111
"""Exit code of a dry run whose server is gone."""
WALL = 1.5
"""Wall seconds of a dry run for each second of its limit, which is of CPU time: so much longer
it may wait for a busy machine, and a run that only sleeps is ended too."""
LOOK_S = 1.0
"""Seconds between looks for who hears the answers."""


@dataclass(slots=True, kw_only=True)
class _Child:
    """A dry run under way."""

    id: str
    process: ForkProcess
    answers: Connection
    deadline: float
    """On the monotonic clock."""


class Server:
    """Answers lines from a file descriptor until its end.

    Args:
        source: file descriptor of the requests, a line each.
        write: told each answer, a line of JSON without its end.
        is_heard: whether anybody still wants answers.
        limit_s: seconds of CPU time after which a dry run is ended.
        jobs: dry runs at the same time.
    """

    def __init__(
        self,
        source: int,
        write: Callable[[str], None],
        *,
        is_heard: Callable[[], bool],
        limit_s: float,
        jobs: int,
    ) -> None:
        self._source, self._write, self._is_heard = source, write, is_heard
        self._limit_s, self._jobs = limit_s, jobs
        self._waiting: deque[str] = deque()
        self._running: list[_Child] = []
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
                for child in [c for c in self._running if c.answers.poll() or _is_late(c)]:
                    self._running.remove(child)
                    self._tell(child.id, self._outcome(child))
                while self._waiting and len(self._running) < self._jobs:
                    self._start(self._waiting.popleft())
        finally:
            for child in self._running:
                child.process.kill()

    def _wait(self) -> None:
        """Until a request came, a dry run answered, died or is late, or it is time to look."""
        left = min((c.deadline for c in self._running), default=float("inf")) - time.monotonic()
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
        self._waiting.extend(line for line in decoded if line.strip())

    def _start(self, line: str) -> None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_answer_through, args=(line, sender, os.getpid(), self._limit_s), daemon=True
        )
        process.start()
        sender.close()
        deadline = time.monotonic() + WALL * self._limit_s
        child = _Child(id=id_of(line), process=process, answers=receiver, deadline=deadline)
        self._running.append(child)

    def _outcome(self, child: _Child) -> dict[str, Any]:
        """The child's answer, or what its silence means."""
        try:
            if child.answers.poll():
                found: dict[str, Any] = json.loads(child.answers.recv_bytes())
                return found
        except EOFError:  # it died without a word
            child.process.join()
            code = child.process.exitcode
            if code != -signal.SIGPROF:
                return error_values("Crashed", f"ended with exit code {code}")
        finally:
            child.process.kill()
            child.process.join()
            child.answers.close()
        limit_s, wall_s = self._limit_s, WALL * self._limit_s
        message = f"took longer than {limit_s:g} s of CPU time, or {wall_s:g} s in all"
        return error_values("TimeLimit", message, rule="time_limit")

    def _tell(self, name: str, values: dict[str, Any]) -> None:
        self._write(json.dumps({"id": name, **values}))


def _is_late(child: _Child) -> bool:
    return time.monotonic() >= child.deadline


def _answer_through(line: str, answers: Connection, server: int, limit_s: float) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    warnings.simplefilter("ignore")  # of other libraries: none of them is an error here
    answers.send_bytes(json.dumps(answer(line)).encode())


def _end_with(server: int) -> None:
    """End this process when its server is gone."""
    while os.getppid() == server:
        time.sleep(LOOK_S)
    os._exit(ORPHANED)
