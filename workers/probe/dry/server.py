"""Requests in, answers out, whatever becomes of any of them.

Each dry run is a fork of this process, which has imported torch and transformers already: it
starts in milliseconds, its process group and accelerate's state are its own, and neither a
crash in C++ nor a run that does not end takes the others down. Where nobody is left to hear
an answer, all of them are ended. POSIX only.

The dry runs of one class share a limit of CPU time, which is the same on a busy machine, and one of
wall time, for what hangs. Where the latter comes first, what is not done is tried once more; then
the answer says so: it is no word on the configuration. Both answers name the operator that the dry
run was at.
"""

import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from traceback import walk_tb
from typing import Any

from torch._ops import OpOverload

from workers.probe.dry.ledger import Progress
from workers.probe.dry.run import DryRun
from workers.probe.group import join_fake_group
from workers.probe.spec import id_and_class, parse_request
from workers.probe.tensor_parallel import UnsupportedByTensorParallel

# Errors by which code says that it does not know what to do with values: with the configuration and
# the model of a dry run, which are all that it is given.
OF_VALUES = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(NotImplementedError, AssertionError, ArithmeticError),
)
# Errors among them that our own code raises to refuse values. Another of them that it raises is a
# mistake of ours, and says nothing of the values.
DELIBERATE = (ValueError, NotImplementedError)
# The folder of the probe program.
OURS = Path(__file__).parents[1]
# Errors that say nothing of the values, wherever they are raised.
OF_THE_MACHINE = (OSError, MemoryError)
# Files that run operators, the probe's tracker and DTensor's dispatcher, and their name for the
# operator.
_DISPATCHERS = {"tracker.py": "func", "_dispatch.py": "op_call"}
# Exit code of a dry run whose server is gone.
ORPHANED = 111
# Seconds between looks for who hears the answers.
LOOK_S = 1.0


@dataclass(slots=True, kw_only=True)
class _ClassTime:
    """The time of the dry runs of one class, from the start of the first."""

    deadline: float  # on the monotonic clock
    cpu_s: float = 0.0  # CPU time of those that have ended
    is_second: bool = False  # whether it has its wall time for the second time


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestLine:
    line: str
    id: str
    of: str  # its class


@dataclass(slots=True, kw_only=True)
class _Child:
    request: _RequestLine
    time: _ClassTime
    process: ForkProcess
    answers: Connection
    progress: Progress


class Server:
    """Answers lines from a file descriptor until its end.

    Args:
        source: file descriptor of the requests, a line each.
        write: told each answer, a line of JSON without its end.
        is_heard: tells whether anybody still reads answers.
        limit_s: seconds of CPU time for the dry runs of a class: each may take what those that
            ended before it have left. So where processors are free a class has ended after as
            many seconds, however many dry runs are made at the same time.
        wall_s: seconds after the start of the first when what is left of a class is tried once
            more, for as long again, where processors are not free.
        since: on the monotonic clock, when the first requests may have been sent: their classes'
            wall time counts from then.
        jobs: dry runs at the same time.
        prepare: called in this process with each request before its dry run is forked.
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
        prepare: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._source, self._write, self._is_heard = source, write, is_heard
        self._limit_s, self._wall_s, self._jobs = limit_s, wall_s, jobs
        self._since, self._prepare = since, prepare
        self._waiting: deque[_RequestLine] = deque()
        self._running: list[_Child] = []
        self._times: dict[str, _ClassTime] = {}
        self._numbers = itertools.count()
        self._unread = b""
        self._ended = False

    def run(self) -> None:
        """Answer every line, in the order in which dry runs end. Raises BrokenPipeError: nobody
        hears the answers; what ran was ended, what waited never ran."""
        try:
            while not self._ended or self._waiting or self._running:
                self._wait()
                if not self._is_heard():
                    raise BrokenPipeError("nobody hears the answers")
                now = time.monotonic()
                for child in list(self._running):
                    is_late = now >= child.time.deadline and not child.answers.poll()
                    if is_late and self._has_second(child.time):
                        before = _ended_cpu_s()
                        _end(child)
                        child.time.cpu_s += _ended_cpu_s() - before
                        self._waiting.appendleft(child.request)
                        self._running.remove(child)
                    elif is_late or child.answers.poll():
                        self._tell(child.request.id, self._outcome(child))
                        self._running.remove(child)
                # a class that is asked for again has all its time again
                under_way = {x.request.of for x in self._running} | {x.of for x in self._waiting}
                for of in self._times.keys() - under_way:
                    del self._times[of]
                while self._waiting and len(self._running) < self._jobs:
                    self._start(self._waiting.popleft())
                if self._running:
                    self._since = None
        finally:
            for child in self._running:
                child.process.kill()

    def _wait(self) -> None:
        """Wait until a request came, a dry run answered, died or is late, or for a look."""
        ends = (child.time.deadline for child in self._running)
        left = min(ends, default=float("inf")) - time.monotonic()
        watched: list[Any] = [c.answers for c in self._running]
        if not self._ended:
            watched.append(self._source)
        timeout = min(LOOK_S, max(0.0, left))
        if self._source not in multiprocessing.connection.wait(watched, timeout):
            return
        found = os.read(self._source, 2**16)
        self._ended = not found
        *lines, self._unread = (self._unread + found).split(b"\n")
        if self._ended:
            lines.append(self._unread)
        for line in (line.decode("utf-8", "replace") for line in lines):
            if line.strip():
                name, of = id_and_class(line)
                # one that names neither is a class of its own
                of = of or f"line {next(self._numbers)}"
                self._waiting.append(_RequestLine(line=line, id=name, of=of))

    def _start(self, request: _RequestLine) -> None:
        began = time.monotonic() if self._since is None else self._since
        new = _ClassTime(deadline=began + self._wall_s)
        of_class = self._times.setdefault(request.of, new)
        left_s, progress = self._limit_s - of_class.cpu_s, Progress()
        is_late = time.monotonic() >= of_class.deadline and not self._has_second(of_class)
        if left_s <= 0 or is_late:
            self._tell(request.id, self._too_long(of_class, progress))
            return
        self._prepare(request.line)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_answer_through,
            args=(request.line, sender, os.getpid(), left_s, progress),
            daemon=True,
        )
        process.start()
        sender.close()  # so that a child's death is seen as the pipe's end
        self._running.append(
            _Child(
                request=request, time=of_class, process=process, answers=receiver, progress=progress
            )
        )

    def _has_second(self, of_class: _ClassTime) -> bool:
        """Gives a class its wall time once more, if this is its first; tells whether it was."""
        if of_class.is_second:
            return False
        of_class.is_second, of_class.deadline = True, time.monotonic() + self._wall_s
        return True

    def _outcome(self, child: _Child) -> dict[str, Any]:
        try:
            if child.answers.poll():
                cpu_s, found = json.loads(child.answers.recv_bytes())
                child.time.cpu_s += cpu_s
                return dict(found)
        except EOFError:  # it died without a word
            child.process.join()
            if child.process.exitcode != -signal.SIGPROF:
                at, message = child.progress, f"ended with exit code {child.process.exitcode}"
                return error_values("Crashed", message, operator=at.operator, phase=at.phase)
            child.time.cpu_s = self._limit_s
        finally:
            _end(child)
        return self._too_long(child.time, child.progress)

    def _too_long(self, of_class: _ClassTime, at: Progress) -> dict[str, Any]:
        """The error of a class that has no CPU time left, or else no wall time."""
        limit_s = self._limit_s if of_class.cpu_s >= self._limit_s else 0.0
        message = f"dry runs of this class take more than {limit_s:g} s of CPU time"
        if not limit_s:
            message = f"twice not done in {self._wall_s:g} s on this machine, which may be busy"
        where = {"operator": at.operator, "phase": at.phase}
        return error_values("TimeLimit", message, rule="time_limit", limit_s=limit_s, **where)

    def _tell(self, name: str, values: dict[str, Any]) -> None:
        self._write(json.dumps({"id": name, **values}))


def _end(child: _Child) -> None:
    child.process.kill()
    child.process.join()
    child.answers.close()


def _ended_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _answer_through(
    line: str, answers: Connection, server: int, limit_s: float, progress: Progress
) -> None:
    """Answer with the CPU time that it took; at the limit this process ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # also ends a call that never returns
    signal.setitimer(signal.ITIMER_PROF, limit_s)

    def end_with_server() -> None:
        while os.getppid() == server:
            time.sleep(LOOK_S)
        os._exit(ORPHANED)

    threading.Thread(target=end_with_server, daemon=True).start()
    warnings.simplefilter("ignore")  # of other libraries: none of them is an error here
    started = time.process_time()
    found = answer(line, progress)
    answers.send_bytes(json.dumps([time.process_time() - started, found]).encode())


def answer(line: str, progress: Progress) -> dict[str, Any]:
    """Answer one line; this process becomes rank 0 of a fake process group.

    Returns:
        ``trace``, or ``error`` with ``type``, ``message``, ``rule``, ``operator``, ``phase`` and
        ``limit_s``, which are empty where they do not apply. An error with a rule or an
        operator refuses this request for good; one with neither is an accident.
    """
    try:
        request = parse_request(line)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return error_values(type(error).__name__, str(error), rule="spec")
    run = DryRun(request, progress)
    try:
        join_fake_group(request.spec.world_size)
        return {"trace": run.run()}
    except Exception as error:  # noqa: BLE001  (any error becomes the answer)
        rule, operator = blame(error)
        return error_values(
            type(error).__name__,
            str(error)[:2000],
            rule=rule,
            operator=operator,
            phase=run.phase.name,
        )


def blame(error: Exception) -> tuple[str, str]:
    """The rule and the operator that refused the request; empty where an error is an accident."""
    if isinstance(error, OF_THE_MACHINE):
        return "", ""
    if isinstance(error, OF_VALUES) and not isinstance(error, DELIBERATE):
        *_, (frame, _) = walk_tb(error.__traceback__)
        if OURS in Path(frame.f_code.co_filename).parents:
            return "", ""  # a mistake of the probe program itself, by where it was raised
    if isinstance(error, UnsupportedByTensorParallel):
        return "tensor_parallel_plan", operator_of(error)
    return "stack" if isinstance(error, OF_VALUES) else "", operator_of(error)


def operator_of(error: BaseException | None) -> str:
    """Name of the operator whose call raised ``error``; empty if none did.

    The innermost counts, and what was raised first if one error led to another.
    """
    # read from the traceback, so that running operators costs nothing
    while error is not None:
        for frame, _ in reversed(list(walk_tb(error.__traceback__))):
            name = _DISPATCHERS.get(frame.f_code.co_filename.rsplit("/", 1)[-1])
            operator = frame.f_locals.get(name) if name else None
            if isinstance(operator, OpOverload):
                return str(operator)
        error = error.__cause__ or error.__context__
    return ""


def error_values(
    kind: str,
    message: str,
    *,
    rule: str = "",
    operator: str = "",
    phase: str = "",
    limit_s: float = 0.0,
) -> dict[str, Any]:
    values = {"type": kind, "message": message, "rule": rule}
    return {"error": {**values, "operator": operator, "phase": phase, "limit_s": limit_s}}
