"""Probes under another of torch's allocators, or with one that is configured."""

import pytest

from tests.cuda.probing import probe_all, spec


def test_cuda_malloc_async_shows_the_memory_that_the_native_allocator_shows(
    gpus, tmp_path, monkeypatch
):
    gpus(1)
    large, small = spec(1, micro=4), spec(1, micro=1)
    (native,) = probe_all([small], tmp_path / "native")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    _, pooled = probe_all([large, small], tmp_path / "pooled")  # the second in a used process
    found, other = native.measurement, pooled.measurement
    assert other.outcome == "ok", other.detail
    assert other.hardware["allocator"] == "cudaMallocAsync"
    assert other.hardware["allocator_conf"] == "backend:cudaMallocAsync"
    assert found.hardware["allocator"] == "native"
    assert found.memory
    assert other.memory
    assert other.memory.allocated_bytes == pytest.approx(found.memory.allocated_bytes, rel=0.01)
    assert other.memory.overhead_bytes == found.memory.overhead_bytes


def test_running_out_of_memory_under_cuda_malloc_async(gpus, tmp_path, monkeypatch):
    gpus(1)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    limit = 2**30
    (probed,) = probe_all([spec(1, memory_limit_bytes=limit)], tmp_path)
    assert probed.measurement.outcome == "oom"
    oom = probed.measurement.oom
    assert oom
    assert oom.phase == "backward"
    assert limit / 2 < oom.allocated_bytes <= limit
