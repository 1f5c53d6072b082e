"""Who could answer a question: versions and fidelity by the workers that live."""

from types import SimpleNamespace

import pytest

from tuner.client.place import place
from tuner.client.request import read_request
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.machine import Machine, ReportedGpu, together

H100 = ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559, uuid="GPU-1")
VERSIONS = {"torch": "2.12.0", "accelerate": "1.14.0", "transformers": "5.20.0"}
ASKED = {
    "workload": {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 256},
    "cluster": "8xh100-80gb",
}


def worker(name, gpus=0, **versions):
    machine = Machine(name=name, gpus=(H100,) * gpus, cores=8, memory_bytes=2**36)
    return SimpleNamespace(name=name, machine=machine.as_dict(), versions={**VERSIONS, **versions})


def placed(*workers, **change):
    return place(read_request({**ASKED, **change}), workers, lambda question: None)


@pytest.mark.parametrize(
    ("workers", "fidelity"),
    [
        ([], Fidelity.PREDICTED),
        ([worker("a")], Fidelity.PREDICTED),
        ([worker("a"), worker("b", 1)], Fidelity.EMULATED),
        ([worker("b", 1), worker("c", 8), worker("a")], Fidelity.MEASURED),
    ],
)
def test_auto_is_the_strongest_of_the_workers(workers, fidelity):
    found = placed(*workers)
    assert found.limits.fidelity is fidelity
    assert any(note.startswith(f"fidelity {fidelity}: ") for note in found.notes)


def test_versions_are_the_worker_s_that_answers_and_it_is_said():
    found = placed(worker("a", torch="2.13.0"), worker("c", 8))
    assert found.question.framework.versions == VERSIONS
    assert found.versions == VERSIONS
    assert any("of worker c: " in note and "torch 2.12.0" in note for note in found.notes)


def test_stated_versions_win_and_are_not_told():
    framework = {"name": "accelerate", "versions": VERSIONS}
    found = placed(worker("c", 8, torch="2.13.0"), framework=framework, fidelity="measured")
    assert found.question.framework.versions == VERSIONS
    assert not any("not stated" in note for note in found.notes)
    auto = placed(worker("c", 8, torch="2.13.0"), framework=framework)
    assert auto.limits.fidelity is Fidelity.PREDICTED  # no worker has what is stated


def test_without_workers_versions_are_those_here():
    found = placed(framework="accelerate")
    assert found.question.framework.versions.items() <= installed_versions().items()
    assert any("installed where the service runs" in note for note in found.notes)


def test_hundreds_of_workers_alike_are_looked_at_once(monkeypatch):
    from tuner.client import place as placing

    looked = []
    whole = placing.best_fidelity
    monkeypatch.setattr(placing, "best_fidelity", lambda *a: looked.append(a) or whole(*a))
    placed(*(worker("same", 1) for number in range(200)), worker("other", 8))
    assert len(looked) == 2


def of_cpus(name, gib, cores=8):
    machine = Machine(name=name, gpus=(), cores=cores, memory_bytes=gib * 2**30)
    return SimpleNamespace(name=name, machine=machine.as_dict(), versions=VERSIONS)


@pytest.mark.parametrize("gib", [64, 256])
def test_cpu_ranks_are_of_the_worker_s_machine(gib):
    found = placed(of_cpus("a", gib), cluster="cpu:2")
    assert found.question.cluster.gpu.memory_bytes == gib * 2**29
    assert found.limits.fidelity is Fidelity.MEASURED


def test_a_worker_of_several_nodes_measures_on_them():
    one = worker("c", 8)
    both = together([Machine.from_dict(one.machine)] * 2)
    several = SimpleNamespace(name="s", machine=both.as_dict(), versions=VERSIONS)
    asked = {"cluster": "2x8xh100-80gb"}
    assert placed(one, several, **asked).limits.fidelity is Fidelity.MEASURED
    assert placed(one, **asked).limits.fidelity is Fidelity.EMULATED
