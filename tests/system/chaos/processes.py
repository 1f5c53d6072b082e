"""Workers and services as processes, to be killed and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STAND_IN_WORKER = ROOT / "tests/process/workers/stand_in_worker.py"
END_S = 300.0
"""Seconds that a process may take to end after SIGTERM."""


@dataclass(kw_only=True)
class Member:
    """One process at a time, always of the same command; its log goes on in one file."""

    name: str
    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[str] | None = field(default=None, repr=False)
    _said_before: int = 0

    @property
    def log(self):
        """All that it said, whenever it was started."""
        path = self.folder / f"{self.name}.log"
        return path.read_text() if path.exists() else ""

    @property
    def serves(self):
        """Whether it has come so far since it was started."""
        return "serving a" in self.log[self._said_before :]

    def start(self):
        """Start it; nothing is waited for."""
        assert self.process is None, self.name
        self._said_before = len(self.log)
        with self._log() as log:
            self.process = subprocess.Popen(
                self.argv, cwd=self.folder, env=self.environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    def kill(self):
        """``kill -9``, also if it is stopped."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def send(self, number):
        """Send it a signal."""
        assert self.process is not None, self.name
        self.process.send_signal(number)

    def end(self):
        """End it as it is meant to be ended, once it serves; its exit code."""
        until = time.monotonic() + END_S
        while not self.serves and time.monotonic() < until:
            time.sleep(0.1)
        self.send(signal.SIGTERM)
        code = self.process.wait(END_S)
        self.process = None
        return code

    def died(self):
        """Whether it has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    @contextmanager
    def _log(self):
        with (self.folder / f"{self.name}.log").open("a") as log:
            yield log


def environment(folder, **more):
    """Of our processes: nothing that whoever starts the tests has set for the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    # Each process computes little, and there are many.
    return {
        "TUNER_PASS_ENV": "STAND_IN_*",
        **kept,
        **own,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **more,
    }


def worker(name, db, folder, script, *, machine="machine", how="--serve", **more):
    """A worker with stand-in ranks, on a machine that has its own folder and locks.

    Args:
        name: of its log.
        db: address of the database.
        folder: for everything.
        script: what each rank does, as of ``stand_in_rank.py``.
        machine: those of one machine share their locks.
        how: ``--serve``, ``--once``, ``--drain``, or a study's id.
        more: variables of its environment, as of ``stand_in_worker.py``.
    """
    words = (db, how, str(folder / machine), json.dumps(script))
    argv = (sys.executable, "-P", str(STAND_IN_WORKER), *words)
    return Member(name=name, argv=argv, folder=folder, environment=environment(folder, **more))


def service(name, db, folder, port):
    """A service on a port of this machine."""
    argv = (sys.executable, "-P", "-m", "api", "--db", db, "--port", str(port))
    return Member(name=name, argv=argv, folder=folder, environment=environment(folder))
