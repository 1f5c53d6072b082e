"""What this machine can do for a question; the machine is stood in for."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.cost import calibrations
from tuner.client.capabilities import (
    best_fidelity,
    is_here,
    stands_in,
    why_not_emulated,
    why_not_measured,
)
from tuner.core.cluster import Cluster, Link, parse_cluster
from tuner.core.framework import Framework, framework
from tuner.core.measurement import Fidelity
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.errors import UsageError
from tuner.machine import Machine, ReportedGpu, together
from tuner.machine import facts as machine
from tuner.model import published_model as read
from workers.calibrate.plan import plan

GIB = 2**30
A100 = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)
H200 = ReportedGpu(name="NVIDIA H200", memory_mib=143771)
SetUp = Callable[..., None]


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> SetUp:
    def set_up(*gpus: ReportedGpu, memory_gib: int = 16) -> None:
        monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(machine, "memory_bytes", lambda: memory_gib * GIB)

    return set_up


def question(cluster: str | Cluster, stack: Framework | None = None) -> Question:
    return Question(
        workload=Workload(model=read("llama-3.2-1b"), sequence_length=1024, global_batch_size=64),
        cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        framework=stack or framework("torch"),
    )


@pytest.mark.parametrize(
    ("gpus", "cluster", "expected"),
    [
        ((A100, A100), "2xa100-80gb", Fidelity.MEASURED),
        ((A100, A100), "a100-80gb", Fidelity.MEASURED),
        ((A100,), "8xa100-80gb", Fidelity.EMULATED),
        ((A100, A100), "2x1xa100-80gb", Fidelity.EMULATED),
        ((H200,), "8xa100-80gb", Fidelity.PREDICTED),
        ((), "8xa100-80gb", Fidelity.PREDICTED),
        ((), "cpu:2", Fidelity.MEASURED),
        ((A100,), "cpu:2", Fidelity.MEASURED),
    ],
)
def test_the_strongest_that_there_is(
    has: SetUp, gpus: tuple[ReportedGpu, ...], cluster: str, expected: Fidelity
) -> None:
    has(*gpus)
    fidelity, why = best_fidelity(question(cluster))
    assert fidelity is expected
    assert cluster in why or fidelity is Fidelity.PREDICTED


def cpu_cluster(ranks: int, gib: int, link: Link) -> Cluster:
    values = {
        "nodes": 1,
        "gpus_per_node": ranks,
        "gpu": {"name": "cpu", "device": "cpu", "memory_bytes": gib * GIB},
        "intra_node": {"bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s},
    }
    return Cluster.from_dict(values)


@pytest.mark.parametrize(
    ("gib", "link", "expected"),
    [
        (2, Link(), Fidelity.MEASURED),
        (8, Link(bytes_per_s=1e9), Fidelity.EMULATED),
        (8, Link(), Fidelity.PREDICTED),
        (32, Link(bytes_per_s=1e9), Fidelity.PREDICTED),
    ],
)
def test_cpu_ranks_by_memory_and_what_is_known_of_their_link(
    has: SetUp, gib: int, link: Link, expected: Fidelity
) -> None:
    has(memory_gib=16)
    assert best_fidelity(question(cpu_cluster(4, gib, link)))[0] is expected


def test_calibrated_links_are_asked_for_only_where_none_are_stated(has: SetUp) -> None:
    has(memory_gib=16)
    cluster = cpu_cluster(4, 8, Link())
    found = calibrations.calibration_of(plan(cluster)["cases"], cluster)
    assert best_fidelity(question(cluster), lambda: found)[0] is Fidelity.EMULATED
    assert best_fidelity(question(cluster), lambda: None)[0] is Fidelity.PREDICTED

    def unasked() -> None:
        raise AssertionError

    stated = cpu_cluster(4, 8, Link(bytes_per_s=1e9))
    assert best_fidelity(question(stated), unasked)[0] is Fidelity.EMULATED


def test_nanotron_and_other_versions_are_predicted(has: SetUp) -> None:
    has(A100)
    nanotron, old = framework("nanotron"), framework("torch", {"torch": "2.11.9"})
    for stack, why in ((nanotron, "nanotron"), (old, "torch 2.11.9")):
        found = best_fidelity(question("a100-80gb", stack))
        assert found[0] is Fidelity.PREDICTED
        assert why in found[1]


def test_a_driver_that_does_not_answer_leaves_predictions(
    has: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise UsageError("cluster", "local", "nvidia-smi did not answer within 20 s")

    monkeypatch.setattr(machine, "visible_gpus", fail)
    fidelity, why = best_fidelity(question("a100-80gb"))
    assert fidelity is Fidelity.PREDICTED
    assert "did not answer" in why


def test_a_larger_gpu_stands_in(has: SetUp) -> None:
    has(H200)
    cluster = parse_cluster("8xa100-80gb")
    assert why_not_emulated(cluster) == ""
    assert stands_in(cluster)
    assert not is_here(cluster)
    has(A100)
    assert why_not_emulated(cluster) == ""
    assert not stands_in(cluster)
    assert "80.0 GiB" in why_not_emulated(parse_cluster("8xh200-141gb"))
    has()
    assert "shows none here" in why_not_emulated(cluster)


def machine_of(*gpus: ReportedGpu, memory_gib: int = 16, trouble: str = "") -> Machine:
    """A machine elsewhere."""
    size = memory_gib * GIB
    return Machine(name="node7", gpus=gpus, cores=4, memory_bytes=size, trouble=trouble)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would look at this machine fails."""

    def look(*_: object) -> None:
        raise AssertionError

    for name in ("visible_gpus", "memory_bytes", "usable_cores"):
        monkeypatch.setattr(machine, name, look)


@pytest.mark.parametrize(
    ("there", "cluster", "expected", "why"),
    [
        (machine_of(A100, A100), "2xa100-80gb", Fidelity.MEASURED, "node7 has all of 2xa100-80gb"),
        (machine_of(A100), "8xa100-80gb", Fidelity.EMULATED, "node7 has one device of"),
        (machine_of(H200), "8xa100-80gb", Fidelity.PREDICTED, "node7 has no device of"),
        (machine_of(), "8xa100-80gb", Fidelity.PREDICTED, "node7 has no device of"),
        (machine_of(trouble="it hangs"), "a100-80gb", Fidelity.PREDICTED, "it hangs"),
    ],
)
@pytest.mark.usefixtures("unseen")
def test_another_machine_is_judged_without_a_look_at_this_one(
    there: Machine, cluster: str, expected: Fidelity, why: str
) -> None:
    found = best_fidelity(question(cluster), there=there)
    assert found[0] is expected
    assert why in found[1]


@pytest.mark.usefixtures("unseen")
def test_why_another_machine_cannot() -> None:
    a100, h200 = parse_cluster("8xa100-80gb"), parse_cluster("8xh200-141gb")
    assert why_not_emulated(a100, machine_of(H200)) == ""
    assert "on node7 (a100-80gb) has 80.0 GiB" in why_not_emulated(h200, machine_of(A100))
    assert "shows none on node7" in why_not_emulated(a100, machine_of())
    assert why_not_measured(a100, machine_of(*[A100] * 8)) == ""
    assert why_not_measured(a100, machine_of(A100)) == "node7 is 1xa100-80gb"
    assert "shows no GPU on node7, so node7 is" in why_not_measured(a100, machine_of())
    large = cpu_cluster(4, 8, Link())
    assert "node7 has 16.0 GiB" in why_not_measured(large, machine_of())
    assert "node7 has 4.0 GiB" in why_not_emulated(large, machine_of(memory_gib=4))
    assert why_not_measured(large, machine_of(memory_gib=32)) == ""


def test_another_machines_versions_count(has: SetUp) -> None:
    has(A100)
    asked = question("a100-80gb", framework("torch", {"torch": "2.12.0"}))
    versions = asked.framework.versions
    assert best_fidelity(asked, there=machine_of(A100), versions=versions)[0] is Fidelity.MEASURED
    newer = {**versions, "torch": "2.13.0"}
    fidelity, why = best_fidelity(asked, there=machine_of(A100), versions=newer)
    assert (fidelity, why) == (
        Fidelity.PREDICTED,
        "torch 2.12.0 is asked about, and 2.13.0 is on node7",
    )


def test_cpu_ranks_of_another_machine_are_not_here(has: SetUp) -> None:
    has(memory_gib=16)
    there = Machine(name="b", gpus=(), cores=64, memory_bytes=16 * GIB, processor="Xeon")
    asked = parse_cluster("cpu:2", there=there)
    assert not is_here(asked)
    assert "of 64 cores of Xeon; this machine has" in why_not_measured(asked)
    assert "of 64 cores of Xeon; this machine has" in why_not_emulated(asked)
    assert best_fidelity(question(asked))[0] is Fidelity.PREDICTED
    assert is_here(asked, there)
    assert is_here(parse_cluster("cpu:2"))
    assert not is_here(parse_cluster("cpu:2"), there)
    fewer = replace(there, cores=32)
    assert "b has 32 of Xeon" in why_not_measured(asked, fewer)


def node(name: str, *gpus: ReportedGpu, memory_gib: int = 16, cores: int = 8) -> Machine:
    return Machine(
        name=name, gpus=gpus, cores=cores, memory_bytes=memory_gib * GIB, processor="Xeon"
    )


@pytest.mark.parametrize(
    ("cluster", "nodes", "why"),
    [
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
    ],
)
def test_a_cluster_is_judged_against_all_nodes(
    cluster: str, nodes: list[Machine], why: str
) -> None:
    found = why_not_measured(parse_cluster(cluster), together(nodes))
    assert why in found
    assert bool(found) == bool(why)


def test_each_node_has_memory_for_its_own_cpu_ranks() -> None:
    nodes = together([node("n1", memory_gib=8), node("n2", memory_gib=4)])
    asked = parse_cluster("2x2xcpu", there=nodes)
    assert asked.gpu.memory_bytes == 4 * GIB
    assert "4.0 GiB each do not fit: n2 has 4.0 GiB" in why_not_measured(asked, nodes)
    assert is_here(replace(asked, gpu=replace(asked.gpu, memory_bytes=2 * GIB)), nodes)


def test_cpu_ranks_of_nodes_are_of_their_processor() -> None:
    nodes = together([node("n1"), node("n2", cores=4)])
    asked = parse_cluster("2x1xcpu", there=nodes)
    assert "the ranks are of 8 cores of Xeon; n2 has 4" in why_not_measured(asked, nodes)
