"""The process that dry-runs: started once, asked many times, and never left behind."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, Any

from tuner.dryrun.plan import DryRunPlan
from tuner.dryrun.profile import LIMIT_S, DryRun
from tuner.environment import passed
from tuner.errors import ProbeError
from tuner.machine import end_first_for_memory

# Wall seconds for each second of the limit, after which a class is ended and tried once more: it
# hangs, or the machine is busy. For the first one they count from the program's start: torch is
# imported first.
WALL = 3.0
# Seconds beyond twice that in which an answer must come.
GRACE_S = 10.0
# Seconds after which whoever waits for an answer is asked again whether to go on.
POLL_S = 0.1
# Characters of the program's stderr that an error tells.
LAST_WORDS = 600
OWN = {
    # a model is built from its configuration; nothing is ever fetched
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "USE_HUB_KERNELS": "NO",
    # no dry run needs a GPU: it neither takes memory beside a probe, nor follows other code with it
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONFAULTHANDLER": "1",
}


class DryRunStoppedError(Exception):
    """Dry runs were given up before their end; the text says why."""


class DryRunner:
    """A process that has torch, as a context: started when first wanted, ended with the context.

    Any thread may ask it; one waits for another.

    Args:
        limit_s: seconds of CPU time that the dry runs of one class may take together.
        jobs: dry runs at the same time; by default one for each core, two at most.
        command: of the program, without options.
    """

    def __init__(
        self,
        *,
        limit_s: float = LIMIT_S,
        jobs: int | None = None,
        command: Sequence[str] = (sys.executable, "-P", "-m", "workers.probe.dry"),
    ) -> None:
        wall_s = WALL * limit_s
        self._silence_s = 2 * wall_s + GRACE_S
        jobs = jobs or min(2, len(os.sched_getaffinity(0)))
        limits = ["--limit-s", str(limit_s), "--wall-s", str(wall_s)]
        self._argv = [*command, *limits, "--jobs", str(jobs)]
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._unread = b""
        self._lock = threading.RLock()

    def __enter__(self) -> "DryRunner":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self) -> None:
        """Starts the process, if it is not there; returns at once."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self.end()
                self._start()

    def made(
        self, plans: Sequence[DryRunPlan], why_stop: Callable[[], str] = lambda: ""
    ) -> Iterator[DryRun]:
        """Makes the dry runs of layouts, each depth beside others; a layout's record as soon as all
        of its own are there. Stops and raises as :meth:`ask` does."""
        by_id = {request["id"]: plan for plan in plans for request in plan.requests}
        answers: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for answer in self.ask([r for plan in plans for r in plan.requests], why_stop):
            plan = by_id[answer["id"]]
            answers[plan.key].append(answer)
            if len(answers[plan.key]) == len(plan.requests):
                moment = datetime.now(UTC).isoformat(timespec="seconds")
                yield DryRun.from_answers(plan, answers.pop(plan.key), moment)

    def ask(
        self, requests: Sequence[Mapping[str, Any]], why_stop: Callable[[], str] = lambda: ""
    ) -> Iterator[dict[str, Any]]:
        """Answers to ``requests``, each as soon as it is there, in any order.

        A process that has died since it was last asked is started again.

        Args:
            requests: as :func:`tuner.dryrun.plan_dry_runs` gives them; their ids differ.
            why_stop: called again and again while an answer is waited for; why to give up, or an
                empty text. It must not wait.

        Raises:
            ProbeError: the process died, was silent for too long, or could not be started.
            DryRunStoppedError: there was a reason to give up; the process is gone then.
        """
        pending = {request["id"] for request in requests}
        assert len(pending) == len(requests), "ids differ"
        if not pending:
            return
        unsent = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
        with self._lock:
            self.start()
            for answer in self._answers(unsent, why_stop):
                if answer.get("id") in pending:
                    pending.remove(answer["id"])
                    yield answer
                if not pending:
                    return

    def _answers(self, unsent: bytes, why_stop: Callable[[], str]) -> Iterator[dict[str, Any]]:
        assert self._process is not None
        said, told = self._process.stdout, self._process.stdin
        assert said is not None
        assert told is not None
        with selectors.DefaultSelector() as selector:
            selector.register(said, selectors.EVENT_READ)
            if unsent:
                selector.register(told, selectors.EVENT_WRITE)
            heard = time.monotonic()
            while True:
                yield from self._complete_lines()
                if why := why_stop():
                    self.end()
                    raise DryRunStoppedError(why)
                ready = [key.fileobj for key, _ in selector.select(POLL_S)]
                if told in ready:
                    try:
                        unsent = unsent[os.write(told.fileno(), unsent[: 2**16]) :]
                    except BlockingIOError:
                        pass
                    except BrokenPipeError:  # that it has ended is seen where it is read
                        unsent = b""
                    if not unsent:
                        selector.unregister(told)
                if said in ready:
                    found = os.read(said.fileno(), 2**20)
                    if not found:
                        self._fail("ended")
                    self._unread += found
                    heard = time.monotonic()
                elif time.monotonic() - heard > self._silence_s:
                    self._fail(f"said nothing for {self._silence_s:g} s")

    def _complete_lines(self) -> Iterator[dict[str, Any]]:
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            with suppress(ValueError):
                if isinstance(answer := json.loads(line), dict):
                    yield answer

    def _start(self) -> None:
        self._words, self._unread = tempfile.TemporaryFile(), b""  # noqa: SIM115  (closed in end)
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env=passed(os.environ) | OWN,
                start_new_session=True,
            )
        except OSError as error:
            self.end()
            raise ProbeError(f"the dry-run program cannot be started: {error}") from error
        end_first_for_memory(self._process.pid)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _fail(self, what: str) -> None:
        words = ""
        if self._words is not None:
            end = self._words.seek(0, os.SEEK_END)
            self._words.seek(max(0, end - 4 * LAST_WORDS))
            words = " ".join(self._words.read().decode("utf-8", "replace").split())[-LAST_WORDS:]
        self.end()
        raise ProbeError(f"the dry-run program {what}{f': {words}' if words else ''}")

    def end(self) -> None:
        """Ends the process, if it is there; it can be started again."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        with suppress(BrokenPipeError):
                            pipe.close()
                process.wait()
            if self._words is not None:
                self._words.close()
                self._words = None
