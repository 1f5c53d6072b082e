from dataclasses import replace

import pytest

from tuner.cluster import parse_cluster
from tuner.errors import ProbeError, UsageError
from tuner.framework import Framework
from tuner.machine import ReportedGpu
from tuner.machine import facts as machine
from tuner.measurement import Fidelity
from workers.machine import check_machine

A100 = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)


def on(question, cluster: str):
    return replace(question, cluster=parse_cluster(cluster))


def test_cpu_ranks_run_anywhere(question, monkeypatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: (A100,))
    check_machine(on(question, "cpu:4"))
    check_machine(on(question, "2x2xcpu"))


@pytest.mark.parametrize("cluster", ["a100-80gb", "2xa100-80gb"])
def test_gpus_of_the_kind_that_is_asked_about(question, monkeypatch, cluster) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: (A100, A100))
    check_machine(on(question, cluster))


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("4xa100-80gb", "this machine is 2xa100-80gb"),
        ("2xh100-80gb", "this machine is 2xa100-80gb"),
        ("2x1xa100-80gb", "it is 2 nodes, and this machine is 2xa100-80gb"),
    ],
)
def test_another_cluster_than_this_machine(question, monkeypatch, cluster, why) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: (A100, A100))
    with pytest.raises(ProbeError, match=why):
        check_machine(on(question, cluster))


def test_no_gpu_here(question, monkeypatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())
    with pytest.raises(ProbeError, match="shows no GPU"):
        check_machine(on(question, "a100-80gb"))


@pytest.mark.parametrize(
    "cluster", ["4xa100-80gb", "2x8xa100-80gb", "8xa100-40gb", "cpu:64", "4x8xcpu"]
)
def test_one_device_plays_rank_0_of_any_cluster_of_its_kind_or_of_smaller_ones(
    question, monkeypatch, cluster
) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: (A100,))
    stands_in = check_machine(on(question, cluster), Fidelity.EMULATED)
    assert stands_in is (cluster == "8xa100-40gb")


@pytest.mark.parametrize(
    ("gpus", "why"), [((), "shows none here"), ((A100,), r"one here \(a100-80gb\) has 80\.0 GiB")]
)
def test_a_device_that_is_too_small_plays_nothing(question, monkeypatch, gpus, why) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
    with pytest.raises(ProbeError, match=why):
        check_machine(on(question, "8xh200-141gb"), Fidelity.EMULATED)


def test_gpus_that_differ(question, monkeypatch) -> None:
    other = ReportedGpu(name="NVIDIA L4", memory_mib=23034)
    monkeypatch.setattr(machine, "visible_gpus", lambda: (A100, other))
    with pytest.raises(ProbeError, match="differ"):
        check_machine(on(question, "a100-80gb"))


def test_a_driver_that_does_not_answer(question, monkeypatch) -> None:
    def fail() -> None:
        raise UsageError("cluster", "local", "nvidia-smi did not answer within 20 s")

    monkeypatch.setattr(machine, "visible_gpus", fail)
    with pytest.raises(ProbeError, match="did not answer"):
        check_machine(on(question, "a100-80gb"))


def test_other_versions_than_were_stated(question) -> None:
    versions = dict(question.framework.versions)
    package = next(iter(versions))
    stated = Framework(name=question.framework.name, versions={**versions, package: "2.11.9"})
    with pytest.raises(ProbeError, match=f"states {package} 2.11.9"):
        check_machine(replace(question, framework=stated))
