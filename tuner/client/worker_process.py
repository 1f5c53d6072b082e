"""A worker as a process of its own, which ends when the command that started it does."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from tuner.core.launcher import LauncherName
from tuner.errors import StoppedError

# What asks this command to end.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds between two bytes to the worker, which tell it that the command is still there.
FEED_S = 1.0
# Between two looks at the worker.
POLL_S = 0.1
# Seconds from SIGTERM to SIGKILL: the worker ends its ranks and hands its probe back.
STOP_S = 20.0
TAIL_BYTES = 4096


class Signals:
    """While entered, signals only leave a note, so that nothing is interrupted half-way."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self.noted: list[signal.Signals] = []

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted.append(signal.Signals(number))


class NoSignals(Signals):
    """Leaves signals as they are: their handlers are the caller's own, and belong to its main
    thread.
    """

    def __enter__(self) -> Self:
        return self


class Worker:
    """A running worker. It has a session of its own, so the terminal's Ctrl-C does not reach it.

    This process holds the write end of its watch pipe: when this process is gone, however it
    ended, the worker ends its ranks and itself.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``argv`` with ``--watch-fd`` and the read end's number added."""
        read, self._feed = os.pipe()
        os.set_blocking(self._feed, False)
        self._fed = time.monotonic()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        try:
            self._process = subprocess.Popen(
                [*argv, "--watch-fd", str(read)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                env={**os.environ, **environment},
                pass_fds=(read,),
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(read)

    def poll(self) -> int | None:
        """Tell it that we are here; its exit code, once it has ended."""
        now = time.monotonic()
        if now - self._fed >= FEED_S:
            self._fed = now
            with suppress(BrokenPipeError, BlockingIOError):  # ended, or busy elsewhere
                os.write(self._feed, b".")
        return self._process.poll()

    def stop(self, signals: Signals) -> None:
        """Ask it to end, and wait; kill it on a further signal, or when it takes too long."""
        noted = len(signals.noted)
        until = time.monotonic() + STOP_S
        self._process.terminate()
        while self._process.poll() is None:
            if time.monotonic() > until or len(signals.noted) > noted:
                self._kill()
            time.sleep(0.05)

    def last_words(self) -> str:
        """The last line that it wrote to stderr, at most 300 characters of it."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - TAIL_BYTES))
        text = self._words.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no worker behind; its ranks end when it does."""
        self._kill()
        self._close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        os.close(self._feed)
        self._words.close()


def worked(
    argv: Sequence[str], environment: Mapping[str, str], signals: Signals, kept: str
) -> tuple[int, str]:
    """Runs a worker to its end: its exit code and last words.

    Raises:
        StoppedError: a signal asked this process to end; with what is ``kept``.
    """
    with signals as asked, Worker(argv, environment) as worker:
        while (code := worker.poll()) is None and not asked.noted:
            time.sleep(POLL_S)
        if asked.noted:
            worker.stop(asked)
            raise StoppedError(asked.noted[0], kept)
        return code or 0, worker.last_words()


def worker_argv(
    study_id: str, probing: Sequence[str] = (), *, queued_only: str | None = None
) -> list[str]:
    """The command of a worker for one study; ``probing`` are its :func:`probing_arguments`.

    ``-P`` keeps the folder that the user is in off the import path.
    """
    argv = [sys.executable, "-P", "-m", "workers", "--study", study_id]
    argv += ["--queued-only", "--fidelity", queued_only] if queued_only else []
    return [*argv, *probing]


def probing_arguments(
    deadline_s: float | None, launcher: LauncherName | None, ray: str
) -> list[str]:
    """Lists a worker's arguments for how probes are run; none for its own choice."""
    known = {
        "probe-deadline": "" if deadline_s is None else f"{deadline_s:g}",
        "launcher": launcher,
        "ray": ray,
    }
    return [f"--{name}={value}" for name, value in known.items() if value]
