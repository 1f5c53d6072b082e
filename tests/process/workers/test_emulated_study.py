"""Emulated studies from question to answer: one process plays rank 0 of a cluster."""

from dataclasses import replace

import pytest

from tuner.core.cluster import Cluster
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Limits, ProbeRequest, StudyState
from tuner.explain.known import answer
from workers.executor import WorkerOptions
from workers.launchers.local import series_argv
from workers.stop import StopRequest
from workers.worker import Worker

CLUSTER = {
    "nodes": 2,
    "gpus_per_node": 4,
    "gpu": {"name": "cpu", "device": "cpu", "memory_bytes": 2**30},
    "intra_node": {"bytes_per_s": 2e9, "latency_s": 1e-5},
    "inter_node": {"bytes_per_s": 1e9, "latency_s": 5e-5},
}


@pytest.fixture
def asked(question):
    workload = replace(question.workload, global_batch_size=16)
    return replace(question, workload=workload, cluster=Cluster.from_dict(CLUSTER))


@pytest.fixture
def emulate(store, preloaded, tmp_path):
    """Probe some settings of a new study of a question, and nothing else."""

    def argv(folder):
        return preloaded(series_argv(folder))

    def run(asked, *texts, **limits):
        study = store.ask(asked, Limits(fidelity=Fidelity.EMULATED, **limits))
        for text in texts:
            request = ProbeRequest(settings=parse_settings(text), fidelity=Fidelity.EMULATED)
            limit = study.limits.limit_bytes(asked.cluster)
            assert store.enter_probe(study.id, store.study(study.id).revision, request, limit)
        options = WorkerOptions(
            queued_only=True,
            fidelity=Fidelity.EMULATED,
            folder=tmp_path / "probes",
            lock=tmp_path / "probes.lock",
            argv=argv,
            replica_argv=argv,
        )
        assert Worker(store, study.id, stop=StopRequest(), options=options).run() == 0
        return store.study(study.id)

    return run


def test_a_probe_of_eight_ranks_on_two_nodes(emulate, asked):
    text = "sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=2"
    study = emulate(asked, text)
    assert study.state is StudyState.DONE
    (probe,) = study.probes
    found = probe.measurement
    assert found.outcome is Outcome.OK, found.detail
    assert len(found.memory.per_rank_bytes) == 1
    assert found.device_s == found.wall_s
    assert not found.emulation.stands_in
    exposed = found.emulation.exposed_s[2]
    compute = found.emulation.compute_s[2]
    assert found.step_times_s[2] == pytest.approx([one + exposed.value_s for one in compute])
    suggestion = answer(study)
    assert suggestion.best.allocated_gib.provenance is Provenance.EMULATED
    assert suggestion.best.step_time_s.provenance is Provenance.EMULATED
    assert any(c.overlap == "prefetched" for c in found.collectives)
