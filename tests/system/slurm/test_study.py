"""A study of two nodes to its answer, by a worker that is a batch job."""

import subprocess
import sys

import pytest

from tests.questions import question_about
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Limits, StudyState
from tuner.explain.known import answer

TUNER = (sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())")


@pytest.fixture
def question():
    """Small: stories15m on one CPU rank of each of two nodes."""
    knobs = {
        "micro_batch_size": (2,),
        "sharding": ("full_shard",),
        "activation_checkpointing": ("none",),
    }
    return question_about("stories15m", "2x1xcpu", tokens=64, batch=4, knobs=knobs)


@pytest.mark.long
def test_a_batch_job_answers_a_study_of_its_two_nodes(in_slurm, store, question, tmp_path):
    study = store.ask(question, Limits(max_probes=2))
    options = ("--once", "--probes", str(tmp_path / "shared"), "--db", store.url)
    done = subprocess.run(
        [*TUNER, "worker", "--slurm", "--nodes=2 --time=30", *options],
        env=in_slurm.environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "running on n[1-2]" in done.stderr
    study = store.study(study.id)
    assert study.state is StudyState.DONE, done.stderr
    (found,) = (probe.measurement for probe in study.at(Fidelity.MEASURED).probes)
    assert found.outcome is Outcome.OK, found.detail
    assert len(found.memory.per_rank_bytes) == 2
    best = answer(study).best
    assert best.step_time_s.provenance is Provenance.MEASURED
    assert not list((tmp_path / "shared").glob("*/*-*"))
