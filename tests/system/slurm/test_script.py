"""A user's script on the two nodes of an allocation."""

import shlex
import threading
from pathlib import Path

import pytest

from tests.process.workers.scripted import left
from tests.process.workers.scripts.contract import *  # noqa: F403
from tests.system.slurm.test_launcher import SUPERVISOR, launcher, nodes  # noqa: F401
from tests.system.slurm.test_submission import TUNER
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


@pytest.mark.long
def test_the_command_in_a_batch_job_answers_by_torchrun_on_both_nodes(in_slurm, tmp_path):
    plain = Path(__file__).parents[2] / "process" / "workers" / "scripts" / "plain.py"
    asked = (
        *("suggest", "--cluster", "2x1xcpu", "--global-batch-size", "4", "--sequence-length", "32"),
        *("--max-probes", "2", "--db", f"sqlite:///{tmp_path}/studies.db", "--script", str(plain)),
        *("--", "--micro", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}"),
    )
    answer = tmp_path / "answer"
    job = shlex.join([*TUNER, *asked])
    done = in_slurm.run("sbatch", "--wait", "--nodes=2", f"--output={answer}", f"--wrap={job}")
    text = answer.read_text()
    assert done, text
    assert "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in text
    assert "2 probes" in text
