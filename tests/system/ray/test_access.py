"""Which clusters a worker uses, and what may be asked of its own."""

import psutil
import pytest

from tests.system.ray.running import ray_cluster
from tuner.errors import UsageError
from workers.launchers.ray.launcher import ray_site


def test_a_wrong_token(in_ray, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")  # Ray tries for 20 s otherwise
    wrong = pytest.raises(UsageError, match="is not there, or has another token than there is here")
    with wrong, ray_site(in_ray.address):
        pass


@pytest.mark.long
def test_a_cluster_that_asks_for_no_token_is_not_used(tmp_path, monkeypatch):
    with ray_cluster(tmp_path, 1, RAY_AUTH_MODE="disabled") as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        open_ = pytest.raises(UsageError, match="runs whatever anybody on its network sends")
        with open_, ray_site(cluster.address):
            pass


@pytest.mark.long
def test_a_cluster_of_our_own_is_this_machine_and_listens_to_it_alone(in_ray, eventually):
    with ray_site() as site:
        assert site.name.startswith("the Ray cluster at 127.0.0.1:")
        assert len(site.machines()) == 1
        process = site.launcher._driver._process
        ours = {one.pid for one in psutil.Process(process.pid).children(recursive=True)}
        hosts = {
            of.laddr.ip
            for of in psutil.net_connections("tcp")
            if of.status == psutil.CONN_LISTEN and of.pid in {*ours, process.pid}
        }
    assert len(ours) > 3
    assert hosts <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert hosts
    eventually(lambda: not set(psutil.pids()) & ours)
