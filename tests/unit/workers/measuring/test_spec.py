from dataclasses import replace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.cost.memory.device import device_terms
from tuner.planner.ranking import VERIFICATION_STEPS
from workers.measuring.measure import MINIMUM_STEPS, WARMUP_STEPS, probe_spec
from workers.measuring.records import write_json
from workers.probe.spec import read_spec

SETTINGS = Settings(micro_batch_size=1, gradient_accumulation_steps=2)


def probe(counts=(), fidelity=Fidelity.MEASURED, limit_bytes=12345):
    request = ProbeRequest(settings=SETTINGS, fidelity=fidelity, accumulation_counts=counts)
    state = ProbeState.RUNNING
    return Probe(id=1, request=request, state=state, memory_limit_bytes=limit_bytes)


def study(question):
    return Study(id="st-1", question=question, limits=Limits(), state=StudyState.RUNNING, seed=11)


def test_the_probe_program_reads_it(question, tmp_path):
    spec = read_spec(write_json(tmp_path / "spec.json", probe_spec(study(question), probe((2, 4)))))
    assert spec.settings.gradient_accumulation_steps == 2
    assert spec.accumulation_counts == [2, 4]
    assert spec.model["model_type"] == "llama"
    assert spec.world_size == spec.gpus_per_node == 2
    assert spec.device == "cpu"
    assert spec.memory_limit_bytes == 12345
    assert spec.seed == 11
    assert spec.sequence_length == 64
    assert spec.global_batch_size == 4
    assert (spec.optimizer, spec.precision, spec.reduce_dtype) == ("adamw", "bf16", "bf16")
    assert spec.tracked_steps < spec.warmup_steps
    assert spec.minimum_steps <= spec.measured_steps


@pytest.mark.parametrize(
    ("limit_bytes", "expected"), [(None, "card"), (2**30, "limit"), (2**50, "card")]
)
def test_an_emulated_probe_has_no_more_than_the_clusters_gpu(question, limit_bytes, expected):
    """The device at hand may be larger; on a GPU context and communicators are beside."""
    asked = replace(question, cluster=parse_cluster("8xa100-80gb"))
    emulated = probe(fidelity=Fidelity.EMULATED, limit_bytes=limit_bytes)
    values = probe_spec(study(asked), emulated)
    assert values["fidelity"] == "emulated"
    found, card = values["memory_limit_bytes"], asked.cluster.gpu.memory_bytes
    if expected == "limit":
        assert found == limit_bytes
    else:
        limits = device_terms(emulated.request.settings, asked.cluster, 0.0)
        assert card == 81_920 * 2**20  # of which CUDA offers less
        beside = (limits.context.value or 0.0) + (limits.communicators.value or 0.0)
        assert found == 81_050 * 2**20 - beside
    measured = probe_spec(study(asked), probe(limit_bytes=limit_bytes))
    assert measured["memory_limit_bytes"] == limit_bytes


def test_a_rehearsed_probe_runs_two_micro_batches_on_the_clusters_gpu(question):
    asked = replace(question, cluster=parse_cluster("8xa100-80gb"))
    each = [
        probe_spec(study(asked), probe((2, 4), fidelity, None))
        for fidelity in (Fidelity.REHEARSED, Fidelity.EMULATED)
    ]
    assert [one["fidelity"] for one in each] == ["rehearsed", "emulated"]
    assert len({one["memory_limit_bytes"] for one in each}) == 1
    accumulation = probe().request.settings.gradient_accumulation_steps
    assert each[0]["accumulation_counts"] == [min(accumulation, 2)]


def test_an_emulated_cpu_rank_has_its_share(question):
    emulated = probe_spec(study(question), probe((), Fidelity.EMULATED, None))
    assert emulated["memory_limit_bytes"] == question.cluster.gpu.memory_bytes


def test_a_probe_does_no_more_steps_at_least_than_the_planner_thinks():
    """What a timeout says of a step is the time over these."""
    assert WARMUP_STEPS + MINIMUM_STEPS < VERIFICATION_STEPS
