"""The worker's side of the process that speaks to Ray: started, asked by lines, ended."""

import json
import logging
import os
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tuner.errors import ProbeError, UsageError
from workers.launchers.environment import kept_environment
from workers.measuring.files import default_probes_folder, make_folder, remove_folder

# Seconds to connect, or to start a cluster on a slow machine.
CONNECT_S = 120.0
# Seconds for an answer, most of which come in milliseconds.
ANSWER_S = 60.0
# Seconds that it gets to take leave of the cluster.
END_S = 15.0
ABOUT_TOKENS = "https://docs.ray.io/en/latest/ray-security/token-auth.html"

log = logging.getLogger(__name__)


def environment(address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that speaks to Ray.

    A cluster of our own gets a token of our own, and is bound to the loopback interface.

    Raises:
        UsageError: there is no token for a cluster that is there already.
    """
    rays = {name: value for name, value in inherited.items() if name.startswith("RAY_")}
    if address:
        check_token(address, inherited)
        own = {}
    else:
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"):
            rays.pop(name, None)
        # On macOS Ray binds a cluster of one node to 127.0.0.1; this has it do so on Linux too.
        own = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    own |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    return kept_environment(inherited) | rays | own


def check_token(address: str, inherited: Mapping[str, str]) -> None:
    """Refuses a cluster without token authentication: whoever reaches it runs what they like there.

    Sources: CVE-2023-48022; Ray's order of places for a token (:data:`ABOUT_TOKENS`).

    Raises:
        UsageError: it is off, or there is no token.
    """
    off = inherited.get("RAY_AUTH_MODE", "token").lower() != "token"
    path = inherited.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    if off or not (inherited.get("RAY_AUTH_TOKEN") or Path(path).is_file()):
        raise UsageError(
            "ray",
            address,
            "must be a cluster with token authentication: set RAY_AUTH_MODE=token, and have"
            f" RAY_AUTH_TOKEN or ~/.ray/auth_token, here and on all of its nodes ({ABOUT_TOKENS})",
        )


class RayDriver:
    """A process that speaks to Ray. One that has ended is started again by the next question."""

    def __init__(self, address: str = "") -> None:
        """One that is not started yet.

        Raises:
            UsageError: Ray is not installed, or this is no address of a cluster to use.
        """
        if find_spec("ray") is None:
            raise UsageError("launcher", "ray", "needs Ray: pip install 'tuner[ray]'")
        if address.startswith("ray://"):
            raise UsageError(
                "ray", address, "must be HOST:PORT of the cluster, from one of its own nodes"
            )
        self.address = address
        """Of the cluster, as it was given; once it is connected to, as Ray tells it."""
        self._given = address
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the process, and has it connect.

        Raises:
            UsageError: the cluster cannot be used.
            ProbeError: the process does not answer.
        """
        with self._lock:
            self._start()

    def ask(self, do: str, *, starts: bool = True, **more: object) -> dict[str, Any]:
        """The answer of the process to a request (``driver.py`` names them).

        One that has ended is started again, unless ``starts`` is off.

        Raises:
            ProbeError: there is no answer; the text says why.
        """
        with self._lock:
            if self._process is None and not starts:
                raise ProbeError("the connection to Ray is lost")
            if self._process is None:
                try:
                    self._start()
                except UsageError as error:  # a cluster that could be used may be away for a while
                    raise ProbeError(str(error)) from error
            assert self._process is not None
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._gone("it has ended") from None
            answer = self._read(ANSWER_S)
        if "error" in answer:
            raise ProbeError(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the process; Ray ends what it has started."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        own = environment(self._given, os.environ)
        # a folder of its own: Ray has its workers import what is in this process's
        self._folder = make_folder(default_probes_folder(), "driver")
        program = [sys.executable, "-P", "-m", "workers.launchers.ray.driver"]
        with (self._folder / "driver.log").open("wb") as output:
            self._process = subprocess.Popen(
                [*program, *(["--address", self._given] if self._given else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=own,
                cwd=self._folder,
                text=True,
                process_group=0,  # Ctrl-C is for the worker, which then ends it
            )
        found = self._read(CONNECT_S)
        if "refused" in found:
            self._end()
            raise UsageError("ray", self._given or "a cluster of this machine", found["refused"])
        self.address = found["address"]
        log.info("connected to Ray %s at %s", found["ray"], self.address)

    def _read(self, seconds: float) -> dict[str, Any]:
        # the next line holds all that there is to read
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise self._gone(f"it did not answer within {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._gone("it has ended")
        values: dict[str, Any] = json.loads(line)
        return values

    def _gone(self, why: str) -> ProbeError:
        text = (self._folder / "driver.log").read_text("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = f" ({lines[-1][:300]})" if lines else ""
        self._end()
        return ProbeError(f"the connection to Ray is lost: {why}{last}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            remove_folder(self._folder)
