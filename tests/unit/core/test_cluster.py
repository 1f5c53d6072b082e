import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import (
    LARGEST_FILE_BYTES,
    Cluster,
    Device,
    Gpu,
    Link,
    local_cluster,
    parse_cluster,
)
from tuner.errors import UnknownNameError, UsageError
from tuner.machine import Machine, ReportedGpu, together
from tuner.machine import facts as machine

GIB = 2**30
INLINE = {
    "nodes": 2,
    "gpus_per_node": 4,
    "gpu": {"name": "mine", "memory_bytes": 10 * GIB, "dense_bf16_flops_per_s": 1e14},
}


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, 2 cores, 24 GiB, whatever the tests run on."""
    monkeypatch.setattr(machine, "visible_gpus", tuple)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 24 * GIB)
    monkeypatch.setattr(machine, "processor", lambda: "AMD EPYC 7763")


def has_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[str, int]) -> None:
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
def test_spellings(text: str, nodes: int, gpus_per_node: int, name: str) -> None:
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, gpus_per_node)
    assert cluster.world_size == nodes * gpus_per_node
    assert cluster.name == name
    assert parse_cluster(cluster.name) == cluster


def test_a_kind_brings_its_figures_and_links() -> None:
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


def test_gpus_without_bf16_units_have_no_bf16_rate() -> None:
    assert parse_cluster("t4").gpu.dense_bf16_flops_per_s is None


def test_cpu_ranks_share_the_memory_of_this_machine() -> None:
    assert parse_cluster("cpu:2").gpu == Gpu(
        name="cpu",
        device=Device.CPU,
        memory_bytes=12 * GIB,
        processor="AMD EPYC 7763",
        cores=2,
    )
    assert parse_cluster("2x2xcpu").gpu.memory_bytes == 6 * GIB
    assert parse_cluster("cpu:2").intra_node == Link()


ELSEWHERE = Machine(name="a", gpus=(), cores=64, memory_bytes=96 * GIB, processor="Xeon")


def test_cpu_ranks_of_another_machine_are_that_ones() -> None:
    gpu = parse_cluster("2x4xcpu", there=ELSEWHERE).gpu
    assert (gpu.processor, gpu.cores, gpu.memory_bytes) == ("Xeon", 64, 12 * GIB)
    assert parse_cluster("local", there=ELSEWHERE).gpus_per_node == 8
    assert parse_cluster("8xa100-80gb", there=ELSEWHERE) == parse_cluster("8xa100-80gb")


def test_a_file_of_cpu_ranks_means_this_machine_unless_it_names_another(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    gpu = {"name": "cpu", "device": "cpu", "memory_bytes": GIB}
    path.write_text(json.dumps({"nodes": 1, "gpus_per_node": 2, "gpu": gpu}))
    assert parse_cluster(str(path)).gpu.processor == "AMD EPYC 7763"
    gpu |= {"processor": "Xeon", "cores": 4}
    path.write_text(json.dumps({"nodes": 1, "gpus_per_node": 2, "gpu": gpu}))
    found = parse_cluster(str(path)).gpu
    assert (found.processor, found.cores) == ("Xeon", 4)


def test_clusters_without_a_processor_are_read_and_written_as_ever() -> None:
    gpu = {"name": "cpu", "device": "cpu", "memory_bytes": GIB}
    found = Cluster.from_dict({"nodes": 1, "gpus_per_node": 2, "gpu": gpu})
    assert found.gpu.processor == ""
    assert not {"processor", "cores"} & found.as_dict()["gpu"].keys()
    assert not {"processor", "cores"} & parse_cluster("8xa100-80gb").as_dict()["gpu"].keys()
    here = parse_cluster("cpu:2")
    assert Cluster.from_dict(here.as_dict()) == here


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"device": "cuda", "processor": "Xeon"}, "processor"),
        ({"device": "cuda", "cores": 4}, "cores"),
        ({"processor": "two\nlines"}, "processor"),
        ({"processor": "x" * 129}, "processor"),
        ({"processor": 7}, "processor"),
        ({"cores": -1}, "cores"),
        ({"cores": True}, "cores"),
    ],
)
def test_a_processor_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    gpu = {"name": "cpu", "device": "cpu", "memory_bytes": GIB, **fields}
    with pytest.raises(UsageError) as raised:
        Cluster.from_dict({"nodes": 1, "gpus_per_node": 2, "gpu": gpu})
    assert raised.value.field == f"cluster.gpu.{field}"


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
        ("missing.toml", "No such file"),
        ("null\0.toml", "cannot be read"),
    ],
)
def test_bad_spellings(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_cluster(text)
    assert caught.value.field == "cluster"
    assert "\n" not in str(caught.value)


def test_unknown_kinds_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_cluster("8xa100-80gb-foo")
    assert caught.value.nearest[0] == "a100-80gb"


@given(st.text(max_size=40))
def test_any_text_is_a_cluster_or_a_usage_error(text: str) -> None:
    try:
        cluster = parse_cluster(text, allow_files=False)
    except UsageError:
        return
    assert cluster.world_size >= 1


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_local_without_gpus_is_the_cores_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    ranks = min(cores, 8)
    assert parse_cluster("local") == parse_cluster(f"cpu:{ranks}")


def test_local_gpus_of_a_known_kind_are_the_same_question_as_the_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_gpus(monkeypatch, *[("NVIDIA A100-SXM4-40GB", 40536)] * 8)
    assert local_cluster() == parse_cluster("8xa100-40gb")


def test_local_gpus_without_error_correction_keep_their_measured_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_gpus(monkeypatch, ("NVIDIA L40S", 49140))
    gpu = local_cluster().gpu
    assert (gpu.name, gpu.memory_bytes) == ("l40s", 49140 * 2**20)
    assert gpu.dense_bf16_flops_per_s == 362.05e12


@pytest.mark.parametrize("reported", [("NVIDIA Foo 9000 (Max)", 50000), ("NVIDIA H200", 35000)])
def test_local_gpus_of_unknown_rates(
    monkeypatch: pytest.MonkeyPatch, reported: tuple[str, int]
) -> None:
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
def test_local_gpus_that_differ_are_refused(
    monkeypatch: pytest.MonkeyPatch, other: tuple[str, int]
) -> None:
    has_gpus(monkeypatch, ("NVIDIA L40S", 46068), other)
    with pytest.raises(UsageError, match=r"differ.*NVIDIA L40S with 46068 MiB"):
        local_cluster()


@pytest.mark.parametrize(
    "text", ["4x8xh100-80gb", "cpu:2", "2x2xcpu", *(f"8x{name}" for name in gpu_kinds())]
)
def test_json_round_trip(text: str) -> None:
    cluster = parse_cluster(text)
    assert Cluster.from_dict(json.loads(json.dumps(cluster.as_dict()))) == cluster


def test_a_table_may_name_a_kind_and_state_its_own_network() -> None:
    network = {"bytes_per_s": 5_000_000_000, "latency_s": 2e-5}
    cluster = Cluster.from_dict(
        {"nodes": 2, "gpus_per_node": 8, "gpu": "h100-80gb", "inter_node": network}
    )
    assert cluster.gpu == parse_cluster("h100-80gb").gpu
    assert cluster.intra_node == parse_cluster("h100-80gb").intra_node
    assert cluster.inter_node == Link(bytes_per_s=5e9, latency_s=2e-5)


def test_a_compute_capability_is_told_where_it_is_stated() -> None:
    """Catalogue GPUs have none of their own, so that their questions stay the same."""
    gpu = {**INLINE["gpu"], "compute_capability": "8.6"}
    cluster = Cluster.from_dict({**INLINE, "gpu": gpu})
    assert cluster.as_dict()["gpu"]["compute_capability"] == "8.6"
    assert Cluster.from_dict(cluster.as_dict()) == cluster
    for other in (Cluster.from_dict(INLINE), parse_cluster("8xh100-80gb")):
        assert "compute_capability" not in other.as_dict()["gpu"]


def test_a_table_may_describe_its_own_gpu() -> None:
    cluster = Cluster.from_dict(INLINE)
    assert cluster.name == "2x4xmine"
    assert cluster.gpu.dense_bf16_flops_per_s == 1e14
    assert cluster.gpu.memory_bytes_per_s is None
    assert cluster.inter_node == Link()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodes": 0}, "cluster.nodes"),
        ({"nodes": True}, "cluster.nodes"),
        ({"nodes": "2"}, "cluster.nodes"),
        ({"nodes": 10**9}, "cluster.nodes"),
        ({"gpus_per_node": 2.0}, "cluster.gpus_per_node"),
        ({"gpus": 8}, "cluster.gpus"),
        ({"gpu": 7}, "cluster.gpu"),
        ({"gpu": "nosuch"}, "cluster.gpu"),
        ({"gpu": "a100"}, "cluster.gpu"),
        ({"gpu": "cpu"}, "cluster.gpu"),
        ({"gpu": {"name": "mine"}}, "cluster.gpu.memory_bytes"),
        ({"gpu": {"name": "mine", "memory_bytes": "80GB"}}, "cluster.gpu.memory_bytes"),
        ({"gpu": {"name": "mine", "memory_bytes": 80}}, "cluster.gpu.memory_bytes"),
        ({"gpu": {"name": "mine", "memory_bytes": 1e11}}, "cluster.gpu.memory_bytes"),
        ({"gpu": {"name": "mine", "memory_bytes": 10**20}}, "cluster.gpu.memory_bytes"),
        ({"gpu": {"name": "a b", "memory_bytes": GIB}}, "cluster.gpu.name"),
        ({"gpu": {"name": 3, "memory_bytes": GIB}}, "cluster.gpu.name"),
        ({"gpu": {"name": "m", "memory_bytes": GIB, "device": "tpu"}}, "cluster.gpu.device"),
        ({"gpu": {"name": "m", "memory_bytes": GIB, "device": []}}, "cluster.gpu.device"),
        ({"gpu": {"name": "m", "memory_bytes": GIB, "flops": 1}}, "cluster.gpu.flops"),
        ({"gpu": {**INLINE["gpu"], "compute_capability": 8.6}}, "cluster.gpu.compute_capability"),
        (
            {"gpu": {**INLINE["gpu"], "compute_capability": "sm86"}},
            "cluster.gpu.compute_capability",
        ),
        ({"intra_node": 5}, "cluster.intra_node"),
        ({"intra_node": {"bytes_per_s": 0}}, "cluster.intra_node.bytes_per_s"),
        ({"intra_node": {"bytes_per_s": 1e-320}}, "cluster.intra_node.bytes_per_s"),
        ({"intra_node": {"bytes_per_s": 1e29}}, "cluster.intra_node.bytes_per_s"),
        ({"inter_node": {"latency_s": 1e29}}, "cluster.inter_node.latency_s"),
        ({"intra_node": {"bytes_per_s": "5"}}, "cluster.intra_node.bytes_per_s"),
        ({"inter_node": {"latency_s": -1}}, "cluster.inter_node.latency_s"),
        ({"inter_node": {"latency_s": float("nan")}}, "cluster.inter_node.latency_s"),
        ({"inter_node": {"latency_s": float("inf")}}, "cluster.inter_node.latency_s"),
        ({"inter_node": {"bytes_per_s": 10**400}}, "cluster.inter_node.bytes_per_s"),
        ({"inter_node": {"speed": 1}}, "cluster.inter_node.speed"),
    ],
)
def test_bad_tables_name_the_path(change: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        Cluster.from_dict({**INLINE, **change})
    assert caught.value.field == field


@pytest.mark.parametrize("missing", ["nodes", "gpus_per_node", "gpu"])
def test_required_fields(missing: str) -> None:
    values = {name: value for name, value in INLINE.items() if name != missing}
    with pytest.raises(UsageError, match=f"cluster.{missing}: got nothing; is required"):
        Cluster.from_dict(values)


def test_too_many_cpu_ranks_are_refused_in_a_table_too() -> None:
    gpu = {"name": "cpu", "device": "cpu", "memory_bytes": GIB}
    with pytest.raises(UsageError, match="at most 256 CPU ranks"):
        Cluster.from_dict({"nodes": 100, "gpus_per_node": 100, "gpu": gpu})


def test_a_cluster_is_checked_however_it_is_made() -> None:
    gpu = Gpu(name="mine", memory_bytes=GIB)
    with pytest.raises(UsageError) as caught:
        Cluster(nodes=0, gpus_per_node=1, gpu=gpu, intra_node=Link(), inter_node=Link())
    assert caught.value.field == "nodes"


def test_files(tmp_path: Path) -> None:
    toml = tmp_path / "Mine.TOML"
    toml.write_text(
        'nodes = 2\ngpus_per_node = 8\ngpu = "h100-80gb"\n'
        "inter_node = { bytes_per_s = 25e9, latency_s = 20e-6 }\n"
    )
    cluster = parse_cluster(str(toml))
    assert cluster.inter_node == Link(bytes_per_s=25e9, latency_s=20e-6)
    data = tmp_path / "mine.json"
    data.write_text(json.dumps(cluster.as_dict()))
    assert parse_cluster(str(data)) == cluster


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", b"nodes = ", "is not toml"),
        ("c.json", b"{", "is not json"),
        ("c.json", b"\xff\xfe", "is not json"),
        ("c.json", b"[" * 60_000, "is not json"),
        ("c.json", b"[]", "must be a table"),
        ("c.json", b" " * (LARGEST_FILE_BYTES + 1), "must be at most"),
        ("c.toml", b"", "is required"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        parse_cluster(str(path))
    assert "\n" not in str(caught.value)


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        parse_cluster(str(path))


def test_text_from_a_network_opens_no_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(INLINE))
    with pytest.raises(UsageError, match="must look like"):
        parse_cluster(str(path), allow_files=False)
    with pytest.raises(UnknownNameError):
        parse_cluster("c.json", allow_files=False)


def test_the_file_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "clusters.md"
    example = page.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    path = tmp_path / "cluster.toml"
    path.write_text(example)
    found = parse_cluster(str(path))
    assert found.name == "2x8xour-gpu"
    assert None not in (found.gpu.dense_bf16_flops_per_s, found.gpu.memory_bytes_per_s)
    assert None not in (found.intra_node.bytes_per_s, found.inter_node.bytes_per_s)


def a_node(name: str, gpus: int = 0, memory: int = 8 * GIB) -> Machine:
    gpu = ReportedGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559)
    return Machine(name=name, gpus=(gpu,) * gpus, cores=4, memory_bytes=memory, processor="Xeon")


def test_local_of_several_nodes_is_all_of_them() -> None:
    assert local_cluster(together([a_node("a", 8), a_node("b", 8)])).name == "2x8xh100-80gb"
    ranks = local_cluster(together([a_node("a"), a_node("b", memory=4 * GIB)]))
    assert (ranks.name, ranks.gpu.memory_bytes, ranks.gpu.cores) == ("2x4xcpu", GIB, 4)


def test_nodes_that_differ_are_no_cluster() -> None:
    with pytest.raises(UsageError, match="its nodes differ \\(8xh100-80gb, 4xh100-80gb\\)"):
        local_cluster(together([a_node("a", 8), a_node("b", 4)]))


def test_cpu_ranks_of_several_nodes_share_the_memory_of_their_node() -> None:
    nodes = together([a_node("a"), a_node("b")])
    assert parse_cluster("2x2xcpu", there=nodes).gpu.memory_bytes == 4 * GIB
    assert parse_cluster("2x2xcpu", there=a_node("a")).gpu.memory_bytes == 2 * GIB
