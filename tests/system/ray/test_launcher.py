"""The Ray launcher on a real cluster: two raylets of this machine, with addresses of their own."""

import os
import signal
import time
from dataclasses import dataclass, field

import pytest

from tests.process.workers.launchers.contract import *  # noqa: F403
from tests.process.workers.launchers.contract import codes, finish, wait_for_ready
from tuner.core.measurement import Outcome
from tuner.errors import ProbeError
from workers.launchers.base import Launcher, Run, Why
from workers.launchers.ray import launcher as launcher_module
from workers.measuring.ranks import Kind, WarmRanks


@dataclass
class Noting:
    """A launcher that keeps what it has started."""

    launcher: Launcher
    runs: list[Run] = field(default_factory=list)

    def start(self, job):
        self.runs.append(self.launcher.start(job))
        return self.runs[-1]


@pytest.fixture
def launcher(site):
    return site.launcher


@pytest.fixture
def nodes():
    return 2


@pytest.fixture
def supervisor(in_ray):
    return (
        "from workers.launchers.ray.launcher import RayDriver, RayLauncher\n"
        f"launcher = RayLauncher(RayDriver({in_ray.address!r}))"
    )


def test_machines_are_the_nodes_and_made_up_gpus_are_none(site):
    machines = site.machines()
    assert len(machines) == 2
    assert all(machine.cores == os.cpu_count() and not machine.gpus for machine in machines)
    assert len(site.devices()) == 1  # both nodes have the cores of this machine
    assert site.name.startswith("the Ray cluster at 127.0.0.2:")


@pytest.mark.long
def test_ranks_see_the_gpus_that_ray_gave_to_their_node(launcher, make_job):
    script = {"*": ["environment:CUDA_VISIBLE_DEVICES", "ok"]}
    run = launcher.start(make_job(script, nodes=2, ranks=4, device="cuda"))
    finish(run)
    for log in run.logs().values():
        assert '"CUDA_VISIBLE_DEVICES": "0,1"' in log


def test_a_place_that_there_is_not(launcher, make_job):
    with pytest.raises(ProbeError, match="3 Ray nodes of one kind are needed, and 2 are there"):
        launcher.start(make_job({}, nodes=3, ranks=3))
    with pytest.raises(ProbeError, match="1 Ray nodes with 4 GPUs are needed, and 0 are there"):
        launcher.start(make_job({}, nodes=1, ranks=4, device="cuda"))


@pytest.mark.long
def test_a_place_that_others_have(launcher, make_job, monkeypatch):
    run = launcher.start(make_job({"*": ["say:ready", "hang"]}, nodes=2))
    wait_for_ready(run)
    monkeypatch.setattr(launcher_module, "PLACE_S", 0.5)
    second = launcher.start(make_job({}, nodes=2))
    with pytest.raises(ProbeError, match="no place for 2 ranks on 2 nodes within"):
        finish(second)
    assert second.cancel().why is Why.CANCELLED
    run.cancel()


@pytest.mark.long
def test_an_actor_that_is_killed_is_a_rank_that_is_lost(launcher, make, marker, alive, eventually):
    run = launcher.start(make({"*": ["say:ready", "hang"]}))
    wait_for_ready(run)
    alive(marker)[0].parent().kill()
    ended = finish(run)
    assert ended.why is Why.PEER_FAILED
    assert sorted(codes(ended)) == [-signal.SIGTERM, -signal.SIGKILL]
    eventually(lambda: not alive(marker))


def test_a_node_that_is_gone_in_the_midst_of_a_probe(
    cluster, site, stand_in_argv, tmp_path, marker, alive, eventually
):
    kind = Kind(ranks=2, world_size=2, device="cpu", nodes=2)
    script = {"*@1": ["ready", "hang"], "*": ["ok"], marker: []}
    folder = tmp_path / "probes"
    kills = iter([cluster.kill_node])

    def pause(seconds):
        time.sleep(seconds)
        if len(list(folder.rglob("ready-*"))) == 2:
            next(kills, lambda: None)()
        return ""

    def measure():
        return ranks.measure(kind, {}, deadline_s=300.0, pause=pause).measurement

    launcher = Noting(site.launcher)
    cores = tuple(device.name for device in site.devices())
    with WarmRanks(
        launcher=launcher, argv=lambda out: stand_in_argv(out, script), folder=folder
    ) as ranks:
        lost = measure()
        ended = launcher.runs[0].poll()
        assert ended.lost_nodes in ((0,), (1,)), "Ray places them in any order"
        assert ended.node_devices == (cores, cores)
        assert lost.lost_devices == (), "the other node has them too"
        assert lost.outcome is Outcome.DEVICE_LOST
        assert "is no longer in the Ray cluster" in lost.detail
        eventually(lambda: not alive(marker))
        with pytest.raises(ProbeError, match="2 Ray nodes of one kind are needed, and 1 are there"):
            measure()
        cluster.add_node()
        assert len(site.machines()) == 2
        script["*@1"] = ["ok"]
        assert measure().outcome is Outcome.OK


@pytest.mark.long
def test_a_connection_that_is_lost_is_told_and_made_anew(site, launcher, make):
    run = launcher.start(make({"*": ["say:ready", "hang"]}))
    wait_for_ready(run)
    site.launcher._driver._process.kill()
    with pytest.raises(ProbeError, match="the connection to Ray is lost"):
        finish(run)
    assert run.cancel().why is Why.CANCELLED
    assert codes(finish(launcher.start(make({"*": ["ok"]})))) == [0, 0]
