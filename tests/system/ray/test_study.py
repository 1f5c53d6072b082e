"""A study of two nodes to its answer, by a worker on a Ray cluster."""

import pytest

from tests.questions import question_about
from tuner.core.measurement import RAN
from tuner.core.quantity import Provenance
from tuner.core.study import Limits, StudyState
from tuner.explain.known import answer
from workers.executor import WorkerOptions
from workers.stop import StopRequest
from workers.worker import Worker


@pytest.fixture
def question():
    """Small: stories15m on one CPU rank of each of two nodes."""
    knobs = {"micro_batch_size": (1, 2), "sharding": ("full_shard",), "sync_each_batch": (False,)}
    return question_about("stories15m", "2x1xcpu", tokens=64, batch=4, knobs=knobs)


@pytest.mark.long
def test_a_worker_answers_a_study_of_the_two_nodes(site, store, question, tmp_path):
    study = store.ask(question, Limits(max_probes=2))
    options = WorkerOptions(
        site=site, folder=tmp_path / "probes", guards=False
    )  # replicas are of one node
    assert Worker(store, study.id, stop=StopRequest(), options=options).run() == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE, study.reason
    found = [probe.measurement for probe in study.probes if probe.measurement]
    assert len(found) == 2
    assert {one.outcome for one in found} <= RAN, found
    assert all(len(one.memory.per_rank_bytes) == 2 for one in found if one.memory)
    best = answer(study).best
    assert best.step_time_s.provenance is Provenance.MEASURED
    assert not list((tmp_path / "probes").iterdir())
