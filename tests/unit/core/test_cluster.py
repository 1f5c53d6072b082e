import json
from dataclasses import replace

import pytest

from tuner import machine
from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, Device, Gpu, Link, local_cluster, parse_cluster
from tuner.errors import UsageError
from tuner.machine import Machine, ReportedGpu, together

GIB = 2**30


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch):
    """No GPU, 2 cores, 24 GiB, whatever the tests run on."""
    monkeypatch.setattr(machine, "visible_gpus", tuple)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 24 * GIB)
    monkeypatch.setattr(machine, "processor", lambda: "AMD EPYC 7763")


def has_gpus(monkeypatch, *gpus):
    found = tuple(ReportedGpu(name=name, memory_mib=memory) for name, memory in gpus)
    monkeypatch.setattr(machine, "visible_gpus", lambda: found)


@pytest.mark.parametrize(
    ("text", "nodes", "gpus_per_node", "name"),
    [
        ("8xa100-80gb", 1, 8, "8xa100-80gb"),
        ("4x8xh100-80gb", 4, 8, "4x8xh100-80gb"),
        ("a100-80gb", 1, 1, "1xa100-80gb"),
        ("1x8xl4", 1, 8, "8xl4"),
        (" 2xH200-141GB ", 1, 2, "2xh200"),
        ("cpu:2", 1, 2, "cpu:2"),
        ("cpu", 1, 1, "cpu:1"),
        ("2x2xcpu", 2, 2, "2x2xcpu"),
        ("3xcpu", 1, 3, "cpu:3"),
    ],
)
def test_spellings(text, nodes, gpus_per_node, name):
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, gpus_per_node)
    assert cluster.world_size == nodes * gpus_per_node
    assert cluster.name == name
    assert parse_cluster(cluster.name) == cluster


def test_a_kind_brings_its_figures_and_links():
    cluster = parse_cluster("8xa100-80gb")
    assert cluster.gpu == Gpu(
        name="a100-80gb",
        device=Device.CUDA,
        memory_bytes=80 * GIB,
        dense_bf16_flops_per_s=312e12,
        memory_bytes_per_s=2039e9,
        dense_fp16_flops_per_s=312e12,
        fp32_flops_per_s=19.5e12,
    )
    assert cluster.intra_node == Link(bytes_per_s=300e9, latency_s=3.4e-6)
    assert cluster.inter_node == Link(bytes_per_s=25e9, latency_s=14e-6)


def test_cpu_ranks_share_the_memory_of_this_machine():
    assert parse_cluster("cpu:2").gpu == Gpu(
        name="cpu", device=Device.CPU, memory_bytes=12 * GIB, processor="AMD EPYC 7763", cores=2
    )
    assert parse_cluster("2x2xcpu").gpu.memory_bytes == 6 * GIB
    assert parse_cluster("cpu:2").intra_node == Link()


ELSEWHERE = Machine(name="a", gpus=(), cores=64, memory_bytes=96 * GIB, processor="Xeon")


def test_cpu_ranks_of_another_machine_are_that_ones():
    gpu = parse_cluster("2x4xcpu", there=ELSEWHERE).gpu
    assert (gpu.processor, gpu.cores, gpu.memory_bytes) == ("Xeon", 64, 12 * GIB)
    assert parse_cluster("local", there=ELSEWHERE).gpus_per_node == 8
    assert parse_cluster("8xa100-80gb", there=ELSEWHERE) == parse_cluster("8xa100-80gb")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must look like"),
        ("8x", "must look like"),
        ("-8xa100-80gb", "must look like"),
        ("1x2x3xa100-80gb", "no such name|must look like"),
        ("8 x a100-80gb", "must look like"),
        ("\u0663xa100-80gb", "must look like"),
        ("cpu:-1", "must look like"),
        ("cpu:", "must look like"),
        ("cpu:2.5", "must look like"),
        ("cpu:0", "CPU ranks must be from 1 to 256"),
        ("cpu:9999999", "CPU ranks must be from 1 to 256"),
        ("200x200xcpu", "CPU ranks must be from 1 to 256"),
        ("0xa100-80gb", "GPUs of a node must be from 1"),
        ("0x8xa100-80gb", "nodes must be from 1"),
        ("9999999x8xa100-80gb", "nodes must be from 1 to 65536"),
        ("9999999xa100-80gb", "GPUs of a node must be from 1 to 1024"),
        ("8xa100", "there are several: write a100-40gb"),
    ],
)
def test_bad_spellings(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_cluster(text)
    assert caught.value.field == "cluster"
    assert "\n" not in str(caught.value)


def test_local_gpus_of_a_known_kind_are_the_same_question_as_the_kind(monkeypatch):
    has_gpus(monkeypatch, *[("NVIDIA A100-SXM4-40GB", 40536)] * 8)
    assert local_cluster() == parse_cluster("8xa100-40gb")


@pytest.mark.parametrize("reported", [("NVIDIA Foo 9000 (Max)", 50000), ("NVIDIA H200", 35000)])
def test_local_gpus_of_unknown_rates(monkeypatch, reported):
    has_gpus(monkeypatch, reported, reported)
    cluster = local_cluster()
    assert cluster.gpus_per_node == 2
    assert cluster.gpu.name in ("nvidia-foo-9000-max", "nvidia-h200")
    assert cluster.gpu.memory_bytes == reported[1] * 2**20
    assert cluster.gpu.dense_bf16_flops_per_s is None
    assert cluster.intra_node == Link()


@pytest.mark.parametrize(
    "other", [("NVIDIA L4", 23034), ("NVIDIA L40S", 49140)], ids=["kinds", "sizes"]
)
def test_local_gpus_that_differ_are_refused(monkeypatch, other):
    has_gpus(monkeypatch, ("NVIDIA L40S", 46068), other)
    with pytest.raises(UsageError, match=r"differ.*NVIDIA L40S with 46068 MiB"):
        local_cluster()


def test_json_round_trip():
    for text in ("4x8xh100-80gb", "cpu:2", "2x2xcpu", *(f"8x{name}" for name in gpu_kinds())):
        cluster = parse_cluster(text)
        assert Cluster.from_dict(json.loads(json.dumps(cluster.as_dict()))) == cluster
        assert "compute_capability" not in cluster.as_dict()["gpu"]
    gpu = Gpu(name="mine", memory_bytes=GIB, compute_capability="8.6")
    own = replace(cluster, gpu=gpu)
    assert own.as_dict()["gpu"]["compute_capability"] == "8.6"
    assert Cluster.from_dict(own.as_dict()) == own


def test_a_cluster_is_checked_however_it_is_made():
    gpu = Gpu(name="mine", memory_bytes=GIB)
    with pytest.raises(UsageError) as caught:
        Cluster(nodes=0, gpus_per_node=1, gpu=gpu, intra_node=Link(), inter_node=Link())
    assert caught.value.field == "nodes"


def a_node(name, gpus=0, memory=8 * GIB):
    gpu = ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559)
    return Machine(name=name, gpus=(gpu,) * gpus, cores=4, memory_bytes=memory, processor="Xeon")


def test_local_of_several_nodes_is_all_of_them():
    assert local_cluster(together([a_node("a", 8), a_node("b", 8)])).name == "2x8xh100-80gb"
    ranks = local_cluster(together([a_node("a"), a_node("b", memory=4 * GIB)]))
    assert (ranks.name, ranks.gpu.memory_bytes, ranks.gpu.cores) == ("2x4xcpu", GIB, 4)


def test_nodes_that_differ_are_no_cluster():
    with pytest.raises(UsageError, match="its nodes differ \\(8xh100-80gb, 4xh100-80gb\\)"):
        local_cluster(together([a_node("a", 8), a_node("b", 4)]))
