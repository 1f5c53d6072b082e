"""One Ray cluster of two nodes for all tests here, and a connection to it."""

from pathlib import Path

import pytest

from tests.process.workers.conftest import alive, eventually, make_job, stand_in_argv, store  # noqa: F401
from tests.process.workers.launchers.contract import mark_long
from tests.system.ray.running import missing, ray_cluster
from workers.launchers.ray.launcher import ray_site


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """All need one Ray. Marks are set before pytest-xdist looks for groups."""
    here, why = Path(__file__).parent, missing()
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))
            mark_long(item)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two nodes that nothing happens to."""
    with ray_cluster(tmp_path_factory.mktemp("ray"), 2) as found:
        yield found


@pytest.fixture(scope="session")
def site(cluster):
    """The connection's process keeps the environment that it was started with."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        with ray_site(cluster.address) as found:
            yield found


@pytest.fixture
def in_ray(cluster, monkeypatch):
    """Processes that are started here may use the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster
