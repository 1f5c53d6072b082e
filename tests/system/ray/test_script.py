"""A user's script on two nodes of a Ray cluster, whose files travel through actors."""

from tests.process.workers.scripts.contract import *  # noqa: F403
from tests.system.ray.test_launcher import launcher, nodes, supervisor  # noqa: F401
