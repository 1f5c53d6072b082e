import pytest

from tuner.catalog.gpus import MIB, gpu_kind, gpu_kinds, reported_kind
from tuner.errors import UnknownNameError, UsageError


def test_every_kind_is_complete_and_plausible():
    for kind in gpu_kinds().values():
        assert kind.title
        assert kind.driver_names
        assert 8 * 2**30 < kind.memory_bytes < 512 * 2**30
        assert kind.memory_bytes % MIB == 0
        assert 0.98 < kind.cuda_bytes / kind.memory_bytes < 0.997
        assert 1e11 < kind.memory_bytes_per_s < 2e13
        assert 1e13 < kind.fp16_flops_per_s < 1e16
        assert kind.fp32_flops_per_s < kind.fp16_flops_per_s
        assert kind.bf16_flops_per_s in (None, kind.fp16_flops_per_s)
        assert kind.matmul_share is None or 0.5 < kind.matmul_share < 0.9
        assert (
            0 < kind.inter_node.bytes_per_s < kind.intra_node.bytes_per_s < kind.memory_bytes_per_s
        )
        assert 0 < kind.intra_node.latency_s < kind.inter_node.latency_s < 1e-3
        assert 1e10 < kind.host_bytes_per_s < kind.memory_bytes_per_s


def test_gpus_without_bf16_matrix_units_say_so():
    assert {k.name for k in gpu_kinds().values() if k.bf16_flops_per_s is None} == {
        "t4",
        "v100-16gb",
        "v100-32gb",
    }


def test_nvidias_have_a_compute_capability():
    """Those with bf16 matrix units are Ampere's or later."""
    for kind in gpu_kinds().values():
        assert bool(kind.compute_capability) == kind.title.startswith("NVIDIA"), kind.name
        if kind.compute_capability:
            has_bf16 = kind.bf16_flops_per_s is not None
            assert (float(kind.compute_capability) >= 8.0) == has_bf16, kind.name


def test_an_ambiguous_name_is_answered_with_the_choice():
    with pytest.raises(UsageError, match=r"a100-40gb, a100-80gb, .* or a100-80gb-pcie") as caught:
        gpu_kind("a100", "cluster.gpu")
    assert caught.value.field == "cluster.gpu"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        gpu_kind("a100-81gb")
    assert "a100-80gb" in caught.value.nearest


def test_kinds_by_what_the_driver_reports():
    for driver_name, memory_mib, name in [
        ("NVIDIA A100-SXM4-40GB", 40536, "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb"),
        ("NVIDIA L40S", 49140, "l40s"),  # error correction off
        ("NVIDIA A100-SXM4-40GB", 20096, None),  # a slice
        ("NVIDIA Tomorrow", 81559, None),
    ]:
        kind = reported_kind(driver_name, memory_mib * MIB)
        assert (kind and kind.name) == name
