"""What this machine can do for a question; the machine is stood in for."""

from dataclasses import replace

import pytest

from tests.questions import question_about
from tests.unit.cost import calibrations
from tuner import machine
from tuner.client.capabilities import best_fidelity, has_one, why_not_emulated, why_not_measured
from tuner.core.adapter import Adapter
from tuner.core.cluster import Cluster, Link, parse_cluster
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity
from tuner.core.packing import Packing
from tuner.core.study import missing_beside
from tuner.machine import Machine, ReportedGpu, together
from workers.calibrate import plan

GIB = 2**30
A100 = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)
H200 = ReportedGpu(name="NVIDIA H200", memory_mib=143771)


@pytest.fixture
def has(monkeypatch):
    def set_up(*gpus, memory_gib=16):
        monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(machine, "memory_bytes", lambda: memory_gib * GIB)

    return set_up


def question(cluster, stack="torch"):
    return question_about("llama-3.2-1b", cluster, stack, tokens=1024, batch=64)


def test_a_gpu_that_is_hidden_is_not_in_use(tmp_path):
    (tmp_path / "dev").mkdir()
    assert not machine.shows_gpu({}, tmp_path)
    (tmp_path / "dev" / "nvidia0").touch()
    assert machine.shows_gpu({}, tmp_path)
    assert machine.shows_gpu({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert not machine.shows_gpu({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    assert not machine.shows_gpu({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path)


def test_the_strongest_that_there_is(has):
    for gpus, cluster, expected in [
        ((A100, A100), "2xa100-80gb", Fidelity.MEASURED),
        ((A100, A100), "a100-80gb", Fidelity.MEASURED),
        ((A100,), "8xa100-80gb", Fidelity.EMULATED),
        ((A100, A100), "2x1xa100-80gb", Fidelity.EMULATED),
        ((H200,), "8xa100-80gb", Fidelity.PREDICTED),
        ((), "8xa100-80gb", Fidelity.PREDICTED),
        ((), "cpu:2", Fidelity.MEASURED),
        ((A100,), "cpu:2", Fidelity.MEASURED),
    ]:
        has(*gpus)
        fidelity, why = best_fidelity(question(cluster))
        assert fidelity is expected
        assert cluster in why or fidelity is Fidelity.PREDICTED


def cpu_cluster(ranks, gib, link):
    values = {
        "nodes": 1,
        "gpus_per_node": ranks,
        "gpu": {"name": "cpu", "device": "cpu", "memory_bytes": gib * GIB},
        "intra_node": {"bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s},
    }
    return Cluster.from_dict(values)


def test_cpu_ranks_by_memory_and_what_is_known_of_their_link(has):
    for gib, link, expected in [
        (2, Link(), Fidelity.MEASURED),
        (8, Link(bytes_per_s=1e9), Fidelity.EMULATED),
        (8, Link(), Fidelity.PREDICTED),
        (32, Link(bytes_per_s=1e9), Fidelity.PREDICTED),
    ]:
        has(memory_gib=16)
        assert best_fidelity(question(cpu_cluster(4, gib, link)))[0] is expected


def test_calibrated_links_are_asked_for_only_where_none_are_stated(has):
    has(memory_gib=16)
    cluster = cpu_cluster(4, 8, Link())
    found = calibrations.calibration_of(plan(cluster)["cases"], cluster)
    assert best_fidelity(question(cluster), lambda: found)[0] is Fidelity.EMULATED
    assert best_fidelity(question(cluster), lambda: None)[0] is Fidelity.PREDICTED

    def unasked():
        raise AssertionError

    stated = cpu_cluster(4, 8, Link(bytes_per_s=1e9))
    assert best_fidelity(question(stated), unasked)[0] is Fidelity.EMULATED


def test_a_larger_gpu_stands_in(has):
    has(H200)
    cluster = parse_cluster("8xa100-80gb")
    assert why_not_emulated(cluster) == ""
    assert not has_one(cluster)
    assert why_not_measured(cluster)
    has(A100)
    assert why_not_emulated(cluster) == ""
    assert has_one(cluster)
    assert "80.0 GiB" in why_not_emulated(parse_cluster("8xh200-141gb"))
    has()
    assert "shows none here" in why_not_emulated(cluster)


def machine_of(*gpus, memory_gib=16, trouble=""):
    """A machine elsewhere."""
    size = memory_gib * GIB
    return Machine(name="node7", gpus=gpus, cores=4, memory_bytes=size, trouble=trouble)


@pytest.fixture
def unseen(monkeypatch):
    """What would look at this machine fails."""

    def look(*_):
        raise AssertionError

    for name in ("visible_gpus", "memory_bytes", "usable_cores"):
        monkeypatch.setattr(machine, name, look)


@pytest.mark.usefixtures("unseen")
def test_another_machine_is_judged_without_a_look_at_this_one():
    for there, cluster, expected, why in [
        (machine_of(A100, A100), "2xa100-80gb", Fidelity.MEASURED, "node7 has all of 2xa100-80gb"),
        (machine_of(A100), "8xa100-80gb", Fidelity.EMULATED, "node7 has one device of"),
        (machine_of(H200), "8xa100-80gb", Fidelity.PREDICTED, "node7 has no device of"),
        (machine_of(), "8xa100-80gb", Fidelity.PREDICTED, "node7 has no device of"),
        (machine_of(trouble="it hangs"), "a100-80gb", Fidelity.PREDICTED, "it hangs"),
    ]:
        found = best_fidelity(question(cluster), there=there)
        assert found[0] is expected
        assert why in found[1]


def node(name, *gpus, memory_gib=16, cores=8):
    return Machine(
        name=name, gpus=gpus, cores=cores, memory_bytes=memory_gib * GIB, processor="Xeon"
    )


def test_a_cluster_is_judged_against_all_nodes():
    for cluster, nodes, why in [
        ("2x2xa100-80gb", [node("n1", A100, A100), node("n2", A100, A100)], ""),
        ("2x1xa100-80gb", [node("n1", A100, A100), node("n2", A100)], ""),
        ("2xa100-80gb", [node("n1", A100, A100), node("n2")], ""),
        ("2x2xa100-80gb", [node("n1", A100, A100), node("n2", A100)], "n2 is 1xa100-80gb"),
        ("2x1xa100-80gb", [node("n1", A100), node("n2")], "no GPU on n2, so n2 is cpu:8"),
        (
            "3x1xa100-80gb",
            [node("n1", A100), node("n2", A100)],
            "3 nodes, and there are 2 (n1, n2)",
        ),
        ("2x1xh100-80gb", [node("n1", A100), node("n2", A100)], "n1 is 1xa100-80gb"),
    ]:
        found = why_not_measured(parse_cluster(cluster), together(nodes))
        assert why in found
        assert bool(found) == bool(why)


def test_a_machine_without_a_workloads_library_does_not_probe_it(has):
    has(memory_gib=16)
    asked = question(cpu_cluster(4, 8, Link(bytes_per_s=1e9)))
    adapted = replace(asked, workload=replace(asked.workload, adapter=Adapter()))
    there = dict(asked.framework.versions)
    assert best_fidelity(asked, versions=there)[0] is Fidelity.EMULATED
    assert best_fidelity(adapted, versions=there | {"peft": "0.21.0"})[0] is Fidelity.EMULATED
    assert best_fidelity(adapted, versions=there) == (
        Fidelity.PREDICTED, "peft is needed, and not installed here",
    )  # fmt: skip
    # on a CPU another kernel attends to documents
    packed = replace(asked, workload=replace(asked.workload, packing=Packing()))
    assert missing_beside(packed, there) == ""
    on_gpus = replace(packed, cluster=parse_cluster("2xa100-80gb"))
    assert missing_beside(on_gpus, there) == "flash-attn"
    assert missing_beside(on_gpus, there | {"flash-attn": "2.8.3"}) == ""
    stack = framework("torch", {}, there | {"flash-attn": "2.8.3"}, beside=["flash-attn"])
    assert stack.versions["flash-attn"] == "2.8.3"
