"""A script's probe on two nodes that are groups of processes of this machine."""

import pytest

from tests.process.workers.scripts.contract import *  # noqa: F403
from workers.launchers.local import LocalLauncher


@pytest.fixture
def launcher():
    return LocalLauncher()


@pytest.fixture
def nodes():
    return 1


@pytest.fixture
def supervisor():
    return "from workers.launchers.local import LocalLauncher\nlauncher = LocalLauncher()"
