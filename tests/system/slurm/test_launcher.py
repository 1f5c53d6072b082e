"""What every launcher does, by Slurm over two nodes."""

import pytest

from tests.process.workers.launchers.contract import *  # noqa: F403

SUPERVISOR = """
from workers.launchers.slurm import SlurmLauncher
from workers.launchers.slurm import Watch
from workers.stop import StopRequest
watch = Watch({job!r}, StopRequest())
launcher = SlurmLauncher(job_id={job!r}, watch=watch)
"""


@pytest.fixture
def launcher(inside):
    return inside.launcher


@pytest.fixture
def nodes():
    return 2


@pytest.fixture
def supervisor(inside):
    return SUPERVISOR.format(job=inside.job)
