"""The cluster of cluster.py as a context, and the environment that means it."""

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = Path(__file__).with_name("cluster.py")
QUICK_TO_FIND_OUT = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}
"""Two seconds instead of fifteen until a node that is gone counts as gone: its port refuses at
once. One that is only held up gets longer to answer."""


def missing():
    """Why there can be no Ray here; empty if there can."""
    return "" if find_spec("ray") else "Ray is not installed: pip install 'tuner[ray]'"


class RayCluster:
    """A cluster that runs."""

    def __init__(self, process, environment):
        self._process = process
        self.environment = environment
        """Of processes that may use it."""
        self.address = self._answer()

    def kill_node(self):
        """The last node's raylet is gone without a word."""
        self._say("kill")

    def add_node(self):
        """Another node joins."""
        self._say("add")

    def _say(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self):
        return self._process.stdout.readline().strip()


@contextmanager
def ray_cluster(folder, nodes, **environment):
    """A cluster of so many nodes; it asks for a token unless ``environment`` says otherwise.

    Its sockets are in a folder of their own: a test's path is too long for them.
    """
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:
        yield from _running(folder, nodes, {"RAY_TMPDIR": short, **environment})


def _running(folder, nodes, more):
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(folder),
        **QUICK_TO_FIND_OUT,
        **more,
    }
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), str(nodes)],
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,
        )
    with process:
        found = RayCluster(process, own)
        assert found.address, (folder / "cluster.log").read_text()[-2000:]
        yield found
        process.communicate(timeout=240)
