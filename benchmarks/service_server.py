"""The service as its own process, as ``tuner serve`` starts it, for ``make bench-service``."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT

TUNER = str(Path(sys.executable).with_name("tuner"))
START_S = 60.0
"""Seconds that a server may take until it says where it is reached."""
STOP_S = 30.0


@dataclass(kw_only=True)
class Server:
    """One server process on this machine; it may be killed and started again at its port."""

    db: str  # address of its database
    folder: Path  # where it runs and writes its log
    options: tuple[str, ...] = ()  # further words of its command line
    port: int = 0  # where it listens; 0 until it has started
    process: subprocess.Popen[str] | None = field(default=None, repr=False)
    """What runs, if anything does."""

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [TUNER, "serve", "--port", str(self.port), "--json", *self.options]
        with (self.folder / "serve.log").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment(self.db), stdout=subprocess.PIPE,
                stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        if "url" not in said:
            self.kill()
            raise RuntimeError((self.folder / "serve.log").read_text()[-2000:])
        self.port = int(said["url"].rpartition(":")[2])

    def kill(self) -> None:
        """End it by ``kill -9``."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def end(self) -> None:
        """End it as it is meant to be ended."""
        if self.process is not None:
            self.process.terminate()
            self.process.communicate(timeout=STOP_S)
            self.process = None


@contextmanager
def serving(db: str, folder: Path, *options: str) -> Iterator[Server]:
    """A server that has started, until left."""
    server = Server(db=db, folder=folder, options=options)
    try:
        server.start()
        yield server
        server.end()
    finally:
        server.kill()


def environment(db: str) -> dict[str, str]:
    """Of our processes: nothing of what whoever starts a benchmark has set for the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    return {**kept, "TUNER_DB": db}


def start_program(name: str, given: Any, db: str = "") -> subprocess.Popen[str]:
    """One of the programs beside this one, given one JSON value, heard through pipes."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), json.dumps(given)]
    return subprocess.Popen(
        command, env=environment(db), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def result_of(process: subprocess.Popen[str], within_s: float) -> Any:
    """The JSON value of a program's last line.

    Raises:
        RuntimeError: it failed.
        subprocess.TimeoutExpired: it was not done in time, and was killed.
    """
    try:
        said, _ = process.communicate(timeout=within_s)
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return json.loads(said.splitlines()[-1])
