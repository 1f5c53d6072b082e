import pytest

from tuner.catalog.models import read
from tuner.cluster import parse_cluster
from tuner.cost.coverage import uncovered
from tuner.framework import framework
from tuner.workload import Optimizer, Precision, Workload, choice

EIGHT = parse_cluster("8xh100-80gb")
SIXTY_FOUR = parse_cluster("8x8xh100-80gb")
OLD = {"accelerate": "0.28.0", "transformers": "4.38.0", "torch": "2.2.0"}


def workload(model: str = "llama-3.1-8b", **more: str) -> Workload:
    return Workload(
        model=read(model),
        sequence_length=1024,
        global_batch_size=8,
        optimizer=choice("optimizer", Optimizer, more.get("optimizer", "adamw")),
        precision=choice("precision", Precision, more.get("precision", "bf16")),
    )


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (workload("mixtral-8x7b"), "mixtral"),
        (workload("gpt2"), "gpt2"),
        (workload(precision="bf16_mixed"), "bf16_mixed"),
        (workload(precision="fp32"), "fp32"),
        (workload(optimizer="sgd"), "sgd"),
        (workload(optimizer="adamw_8bit"), "adamw_8bit"),
    ],
)
def test_nanotron_is_covered_where_it_was_fitted(asked: Workload, word: str) -> None:
    assert word in uncovered(asked, framework("nanotron", {}), EIGHT)
    assert uncovered(asked, framework("torch", {}), EIGHT) == ""


def test_a_llama_in_bf16_is_covered() -> None:
    assert uncovered(workload(), framework("nanotron", {}), EIGHT) == ""


def test_experts_that_fsdp1_would_not_pad_are_not_covered() -> None:
    mixtral, old = workload("mixtral-8x7b"), framework("accelerate", OLD)
    assert "FSDP1" in uncovered(mixtral, old, SIXTY_FOUR)
    assert uncovered(mixtral, old, EIGHT) == ""  # one expert for each rank: nothing to pad
    assert uncovered(mixtral, framework("torch", {}), SIXTY_FOUR) == ""
    assert uncovered(workload(), old, SIXTY_FOUR) == ""


def test_experts_that_are_not_packed_are_not_covered() -> None:
    mixtral = workload("mixtral-8x7b")
    stated = {"accelerate": "1.7.0", "torch": "2.7.0"}
    apart = framework("accelerate", {**stated, "transformers": "4.57.6"})
    packed = framework("accelerate", {**stated, "transformers": "5.0.0"})
    assert "before 5" in uncovered(mixtral, apart, SIXTY_FOUR)
    assert uncovered(mixtral, apart, EIGHT) == ""
    assert uncovered(workload(), apart, SIXTY_FOUR) == ""
    assert uncovered(mixtral, packed, SIXTY_FOUR) == ""
