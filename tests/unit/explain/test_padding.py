"""Padding of packed experts, in bytes and in words."""

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.explain.memory import padding, padding_bytes
from tuner.model import load_model

EXPERT = 3 * 4096 * 14336
"""Elements of one of Mixtral-8x7B's experts."""


def mixtral(**changes: object) -> Workload:
    fields = {"model": load_model("mixtral-8x7b"), "sequence_length": 2048, **changes}
    return Workload(global_batch_size=4096, **fields)  # type: ignore[arg-type]


FULL = Settings(sharding=Sharding.FULL_SHARD)


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 2 + 2 + 4),
        ({"precision": Precision.BF16_MIXED}, 4 + 4 + 8),
        ({"optimizer": Optimizer.SGD}, 2 + 2),
    ],
)
def test_what_is_held_and_gathered(changes: dict[str, object], each: int) -> None:
    """On 64 ranks one of 8 experts has room on each, of which an eighth is its share."""
    held, gathered = padding_bytes(mixtral(**changes), parse_cluster("8x8xh100-80gb"), FULL)
    assert held == pytest.approx(32 * (1 - 1 / 8) * EXPERT * each, rel=0.01)
    assert gathered == pytest.approx((64 - 8) * EXPERT * 2, rel=0.01)


def test_the_fact_names_ranks_experts_and_sizes() -> None:
    (found,) = padding(mixtral(), parse_cluster("8x8xh100-80gb"), FULL)
    assert (found.ranks, found.each, found.experts) == (64, 1, 8)
    assert found.held_bytes / 2**30 == pytest.approx(36.8, rel=0.01)
    assert found.gathered_bytes / 2**30 == pytest.approx(18.4, rel=0.01)


@pytest.mark.parametrize(
    ("model", "cluster", "sharding"),
    [
        ("mixtral-8x7b", "8xh100-80gb", Sharding.FULL_SHARD),  # one expert on each rank
        ("mixtral-8x7b", "8x8xh100-80gb", Sharding.HYBRID_SHARD),  # the same within a node
        ("mixtral-8x7b", "8x8xh100-80gb", Sharding.DDP),
        ("mixtral-8x7b", "1xh100-80gb", Sharding.FULL_SHARD),
        ("llama-3.1-8b", "8x8xh100-80gb", Sharding.FULL_SHARD),
    ],
)
def test_nothing_is_said_where_nothing_is_padded(
    model: str, cluster: str, sharding: Sharding
) -> None:
    asked = mixtral(model=load_model(model))
    assert not list(padding(asked, parse_cluster(cluster), Settings(sharding=sharding)))


def test_nothing_is_held_on_the_device_under_offload() -> None:
    settings = Settings(sharding=Sharding.FULL_SHARD, cpu_offload=True)
    held, gathered = padding_bytes(mixtral(), parse_cluster("8x8xh100-80gb"), settings)
    assert held == 0.0
    assert gathered > 0
