"""What a machine cannot run is said before it is tried."""

from dataclasses import replace

import pytest

from tuner.core.cluster import Device


@pytest.fixture
def why_not_8bit(benchmark, monkeypatch):
    """Why a case of 8-bit AdamW is not run, with a release of torchao or with none."""
    probing = benchmark("gpu.probing")
    monkeypatch.setattr(probing, "why_not_emulated", lambda cluster: "")
    place = benchmark("gpu.place").Place(device=Device.CUDA, gpu="h200", title="x")

    def why(version: str | None, knobs: str, stated: str = "precision=bf16") -> str:
        versions = {} if version is None else {"torchao": version}
        monkeypatch.setattr(probing, "dry_run_versions", lambda: versions)
        line = f"llama-3.2-1b 8 {knobs} optimizer=adamw_8bit {stated}"
        cases = benchmark("gpu.cases")
        one = cases.GpuCase(part=cases.Part.SEED, case=cases.case_of(line, place))
        plain = replace(one.case.workload, optimizer="adamw")
        assert probing.why_not_here(replace(one, case=replace(one.case, workload=plain))) == ""
        return probing.why_not_here(one)

    return why


def test_8bit_states_of_split_bf16_parameters_are_not_tried(why_not_8bit) -> None:
    said = "torchao 0.18.0 cannot step on bf16 DTensors (aten.view.dtype of OptimState8bit)"
    assert why_not_8bit("0.18.0", "sharding=full_shard") == said
    assert why_not_8bit("0.18.0", "tp_size=8") == said


def test_what_torchao_runs_is_tried(why_not_8bit) -> None:
    assert why_not_8bit("0.19.0", "sharding=full_shard") == ""
    assert why_not_8bit("0.18.0", "sharding=ddp") == ""
    assert why_not_8bit("0.18.0", "sharding=full_shard", "precision=fp32") == ""


def test_without_torchao_it_says_so(why_not_8bit) -> None:
    assert why_not_8bit(None, "sharding=ddp") == "torchao is not installed here"


def test_the_row_of_the_issue_is_the_one_that_is_left_out(benchmark, monkeypatch) -> None:
    probing, cases = benchmark("gpu.probing"), benchmark("gpu.cases")
    monkeypatch.setattr(probing, "why_not_emulated", lambda cluster: "")
    monkeypatch.setattr(probing, "dry_run_versions", lambda: {"torchao": "0.18.0+cpu"})
    place = benchmark("gpu.place").Place(device=Device.CUDA, gpu="h200", title="x")
    left_out = [
        one.key for one in cases.cases_of(cases.Part.SEED, place) if probing.why_not_here(one)
    ]
    assert len(left_out) == 1
    assert "adamw_8bit" in left_out[0]
