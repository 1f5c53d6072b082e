"""A user's script on the two nodes of an allocation."""

import threading

import pytest

from tests.process.workers.scripted import left
from tests.process.workers.scripts.contract import *  # noqa: F403
from tests.system.slurm.test_launcher import SUPERVISOR, launcher, nodes  # noqa: F401
from tuner.core.measurement import Outcome


@pytest.fixture
def supervisor(inside):
    return SUPERVISOR.format(job=inside.job)


def test_a_job_that_is_cancelled_ends_all_ranks(
    inside, in_slurm, on_nodes, run, tmp_path, eventually
):
    found = []
    question = on_nodes("time.sleep(1000)")
    thread = threading.Thread(target=lambda: found.append(run(question, inside.stop.wait)))
    thread.start()
    try:
        eventually(lambda: len(list(tmp_path.glob("probes/*/seen-*"))) == 4, 120.0)
        in_slurm.run("scancel", inside.job)
        thread.join(120.0)
    finally:
        inside.stop.request("the test is over")
        thread.join()
    assert [one.outcome for one in found] == [Outcome.CANCELLED]
    assert not left(tmp_path)
