import pytest

from tuner.catalog.models import read
from tuner.cluster import parse_cluster
from tuner.cost.compute import peak_flops_per_s, stage_compute_s
from tuner.cost.constants import default_costs
from tuner.cost.stages import Stage
from tuner.settings import Settings
from tuner.workload import Precision, Workload

CLUSTER, COSTS = parse_cluster("h100-80gb"), default_costs()
LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)
HEAD = Stage(layers=0, embedding=False, head=True, blocks=1)


def seconds(model: str, tokens: int, stage: Stage = LAYER) -> float:
    workload = Workload(model=read(model), sequence_length=tokens, global_batch_size=8)
    return stage_compute_s(workload, Settings(), CLUSTER, COSTS, stage)


def test_the_rate_is_the_precisions() -> None:
    rates = [
        peak_flops_per_s(
            Workload(
                model=read("gpt2"), sequence_length=8, global_batch_size=1, precision=precision
            ),
            CLUSTER,
        )
        for precision in Precision
    ]
    assert rates == [989.5e12, 989.5e12, 67e12]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt2"])
def test_a_layer_takes_longer_than_at_the_peak(model: str) -> None:
    config = read(model)
    flops = 6 * (config.active_parameters - config.embedding_parameters) / config.layers
    ideal = flops * 1024 / 989.5e12
    assert ideal < seconds(model, 1024) < 50 * ideal


def test_experts_with_few_tokens_read_their_weights() -> None:
    """128 experts' weights are read for 64 tokens nearly as for 1024."""
    few, many = (seconds("qwen3-30b-a3b", tokens) for tokens in (64, 1024))
    assert many / few < 4
    dense_few, dense_many = (seconds("qwen3-4b", tokens) for tokens in (64, 1024))
    assert dense_many / dense_few > 15


def test_the_head_costs_its_vocabulary() -> None:
    assert seconds("llama-3.1-8b", 1024, HEAD) > 3 * seconds("llama-2-7b", 1024, HEAD)
