"""Requests, the questions that they ask, and what a worker would do to their studies."""

from dataclasses import replace

from tests.models import TINY
from tests.unit import made
from tuner.client.request import read_request
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, Study, StudyState
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.forecast import forecast
from tuner.store import WorkerIdentity

WORKLOAD = {"model": TINY, "sequence_length": 32, "global_batch_size": 16}
PREDICTED = {"workload": WORKLOAD, "cluster": "2xa100-80gb"}
MEASURED = {
    "workload": WORKLOAD,
    "cluster": "cpu:2",
    "framework": "accelerate",
    "fidelity": "measured",
    "budget": {"max_probes": 4},
}


def question_of(body):
    return read_request(body).question(installed_versions())


def classes_of(question):
    study = Study(
        id="st-1",
        question=question,
        limits=Limits(fidelity=Fidelity.PREDICTED),
        state=StudyState.QUEUED,
    )
    return {settings.layout for settings in forecast(study).space.legal}


def ok(seconds, count, size=3 * 10**8):
    times = {count: (seconds,) * 10}
    return replace(made.ok(seconds, size / 2**20), step_times_s=times, versions={}, wall_s=2.0)


def claimed(store, study_id):
    """What a worker does first: plan a probe, and claim it."""
    store.move(study_id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    study = store.study(study_id)
    request = next_probe(study)
    assert not isinstance(request, Stop | Wait)
    assert store.enter_probe(study_id, study.revision, request, 10**12)
    claim = store.claim(study_id, WorkerIdentity.of_this_process())
    assert claim is not None
    return claim


def probe(store, study_id, found=None):
    """What a worker does: plan a probe, claim it, and record what it found."""
    claim = claimed(store, study_id)
    count = claim.probe.request.settings.gradient_accumulation_steps
    assert store.record(claim, found or ok(1.0, count))
    return store.study(study_id)


def finish(store, study_id, reason="the budget is spent"):
    store.move(study_id, StudyState.RUNNING)
    assert store.move(study_id, StudyState.DONE, reason)
