"""What is not covered, and what is only misspelled."""

import pytest

from tuner.catalog.gpus import gpu_kinds
from tuner.client.cases.reading import uncovered_gpu, uncovered_model_type


@pytest.mark.parametrize("model_type", ["mamba", "deepseek_v3", "x" * 5000])
def test_other_types_are_not_covered(model_type: str) -> None:
    reason = uncovered_model_type(model_type)
    assert "is not covered" in reason
    assert "mixtral" in reason
    assert len(reason) < 400


def test_a_type_that_looks_like_another_gets_a_hint() -> None:
    assert "did you mean mixtral?" in uncovered_model_type("mixtrall")
    assert "did you mean" not in uncovered_model_type("mamba")


@pytest.mark.parametrize("model_type", ["llama", "", None, 5, ["llama"]])
def test_what_is_covered_or_no_type_at_all_is_for_the_reader(model_type: object) -> None:
    assert uncovered_model_type(model_type) == ""


@pytest.mark.parametrize("name", ["h100-80bg", "a10080gb", "h10080gb", "mi300"])
def test_a_misspelled_gpu_is_a_mistake(name: str) -> None:
    assert uncovered_gpu(name, gpu_kinds()) == ""


@pytest.mark.parametrize("name", ["b300", "h800-80gb", "tpu-v5e", "gaudi3", "x" * 5000])
def test_another_gpu_is_not_covered(name: str) -> None:
    reason = uncovered_gpu(name, gpu_kinds())
    assert "is not in the catalogue" in reason
    assert "memory_bytes" in reason
    assert len(reason) < 400
