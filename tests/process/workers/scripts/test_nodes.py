"""A script's probe on two nodes that are groups of processes of this machine."""

from tests.process.workers.launchers.test_local import launcher, nodes, supervisor
from tests.process.workers.scripts.contract import *  # noqa: F403

__all__ = ["launcher", "nodes", "supervisor"]
