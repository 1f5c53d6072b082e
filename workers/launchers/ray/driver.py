"""The process that speaks to Ray for a worker.

    python -P -m workers.launchers.ray.driver [--address HOST:PORT]

It connects to the cluster, or starts one of this machine alone, and says so in a line of JSON; then
it answers each line of its standard input with one. It ends with its input, and Ray ends what it
has started there. Ray takes signals, prints, and ends a process whose cluster is gone: this one
has nothing to lose by that.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import ray
from ray.exceptions import AuthenticationError, RayError

from workers.launchers.base import Job
from workers.launchers.ray.cluster import (
    FactsDict,
    Node,
    NotPlacedError,
    alike,
    alive,
    look_at,
    why,
)
from workers.launchers.ray.placed import PlacedJob
from workers.launchers.site import Facts

# Seconds for a connection to the cluster.
REACH_S = 10.0
# Seconds for a command of Ray's, which waits for its cluster for 40.
OPEN_CHECK_S = 60.0

Answer = dict[str, Any]


class RefusedError(Exception):
    """The cluster is not one to be used; the text says what must be."""


class Driver:
    """Answers what the worker asks."""

    def __init__(self) -> None:
        self._jobs: dict[int, PlacedJob] = {}
        self._used: dict[str, FactsDict] = {}
        self._answers: dict[str, Callable[..., Answer]] = {
            "nodes": self._nodes,
            "start": self._start,
            "look": self._look,
            "devices": self._devices,
            "stop": self._stop,
            "close": self._close,
        }

    def answer(self, request: Answer) -> Answer:
        """The answer to a request; ``error`` where there is none."""
        try:
            return self._answers[request.pop("do")](**request)
        except NotPlacedError as error:
            return {"error": str(error)}
        except RayError as error:
            return {"error": f"Ray: {why(error)}"}

    def _nodes(self) -> Answer:
        """The nodes on which jobs are placed."""
        nodes = alive()
        found, useless = look_at(nodes)
        self._used = {node: found[node] for node in alike(found)} if found else {}
        left_out = {nodes[node].address: reason for node, reason in useless.items()}
        for node in found.keys() - self._used.keys():
            left_out[nodes[node].address] = "it is of another kind than those that are used"
        return {"nodes": [*self._used.values()], "left_out": left_out}

    def _start(self, run: int, job: Answer, program: str) -> Answer:
        if not self._used:
            self._nodes()
        self._jobs[run] = PlacedJob(Job.from_dict(job), program, self._there())
        return {}

    def _there(self) -> list[Node]:
        nodes = alive()
        return [nodes[node] for node in self._used if node in nodes]

    def _look(self, run: int, feed: bool) -> Answer:
        if run not in self._jobs:
            return {"error": "the connection to Ray was lost, and its ranks with it"}
        return self._jobs[run].look(feed=feed)

    def _devices(self, run: int) -> Answer:
        """Names of what each node of a job that runs has, where all are known."""
        nodes = self._jobs[run].nodes if run in self._jobs else []
        known = self._used.keys() >= {*nodes}
        found = [Facts.from_dict(self._used[node]).devices for node in nodes if known]
        return {"devices": found}

    def _stop(self, run: int) -> Answer:
        if job := self._jobs.get(run):
            job.stop()
        return {}

    def _close(self, run: int) -> Answer:
        if job := self._jobs.pop(run, None):
            job.close()
        return {}


def connect(address: str) -> str:
    """Connects to a cluster, or start one on this machine's loopback interface; its address.

    Raises:
        RefusedError: it cannot be used.
    """
    _reach(address)
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            configure_logging=False,
            **({} if address else {"include_dashboard": False}),
        )
    except (AuthenticationError, ConnectionError) as error:
        raise RefusedError(
            f"is not there, or has another token than there is here ({why(error)})"
        ) from error
    except (RuntimeError, ValueError, RayError) as error:
        raise RefusedError(f"cannot be used: {why(error)}") from error
    found = str(ray.get_runtime_context().gcs_address)
    if address and _is_open(found):
        raise RefusedError(
            "must be a cluster with token authentication (RAY_AUTH_MODE=token on all of its"
            " nodes): this one runs whatever anybody on its network sends"
        )
    return found


def _reach(address: str) -> None:
    """Sees whether anything listens there: Ray tries for minutes, and does not say so."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise RefusedError(f"is not there: {error}") from error


def _is_open(address: str) -> bool:
    """True if a cluster answers somebody without a token."""
    argv = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH_")}
    done = subprocess.run(
        [*argv, "--address", address],
        env={**environment, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        timeout=OPEN_CHECK_S,
        check=False,
    )
    return done.returncode == 0


def serve(requests: Iterable[str], answers: TextIO) -> None:
    """Answers requests until there are no more."""
    driver = Driver()
    for line in requests:
        _say(answers, driver.answer(json.loads(line)))


def _say(answers: TextIO, values: Answer) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def main() -> int:
    """Connects, and serve; 0 when nothing more is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="", help="of a cluster; else one is started")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
    try:
        address = connect(options.address)
    except RefusedError as error:
        _say(answers, {"refused": str(error)})
        return 1
    _say(answers, {"address": address, "ray": ray.__version__})
    serve(sys.stdin, answers)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
