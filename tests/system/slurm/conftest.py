"""One Slurm for all tests here, and a job of it whose allocation they are in."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.process.workers.conftest import alive, eventually, make_job, stand_in_argv, store  # noqa: F401
from tests.process.workers.launchers.contract import mark_long
from tests.system.slurm.cluster import missing, slurm_cluster
from workers.launchers.slurm import SlurmLauncher, Watch
from workers.stop import StopRequest


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    """All need one Slurm."""
    here = Path(__file__).parent
    why = missing()
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.xdist_group("slurm"))
            mark_long(item)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Two nodes."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def in_slurm(slurm, monkeypatch):
    """This process's commands mean that Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return slurm


@pytest.fixture
def allocate(in_slurm, monkeypatch):
    """An allocation of both nodes that this process is in: its number."""
    jobs = []

    def allocate(*options):
        asked = ("--nodes=2", "--no-kill", *options)
        sleep = ("--output=/dev/null", "--wrap=exec sleep 600")
        jobs.append(in_slurm.run("sbatch", "--parsable", *asked, *sleep).strip())
        in_slurm.wait_for("RUNNING", "squeue", "-h", "-j", jobs[-1], "-o", "%T")
        monkeypatch.setenv("SLURM_JOB_ID", jobs[-1])
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
        return jobs[-1]

    yield allocate
    for job in jobs:
        in_slurm.run("scancel", "--quiet", job)
    in_slurm.mend()


@pytest.fixture
def inside(allocate):
    """An allocation, what looks at it, a launcher in it, and requests to stop."""
    job, stop = allocate(), StopRequest()
    with Watch(job, stop, poll_s=0.5) as watch:
        launcher = SlurmLauncher(job_id=job, watch=watch)
        yield SimpleNamespace(job=job, stop=stop, watch=watch, launcher=launcher)
