import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.workload import Workload
from tuner.cost.constants import default_costs
from tuner.cost.time.pipeline import PipelineSeconds, pipeline_seconds
from tuner.model import published_model as read

COSTS = default_costs()


def seconds(
    text: str, cluster: str = "2x8xh100-80gb", sequence_length: int = 4096, batch: int = 128
) -> PipelineSeconds:
    workload = Workload(
        model=read("llama-3.1-8b"), sequence_length=sequence_length, global_batch_size=batch
    )
    return pipeline_seconds(workload, parse_settings(text), parse_cluster(cluster), COSTS)


def test_replicated_pipelines_over_nodes_stall_and_sharded_ones_hardly() -> None:
    shape = "pp_size=8,gradient_accumulation_steps=64"
    replicated, sharded = seconds(f"sharding=ddp,{shape}"), seconds(f"sharding=zero1,{shape}")
    slots = 64 + 8 - 1
    assert replicated.exchange_stall_s == pytest.approx(2 * slots * COSTS.time.stall_s)
    assert sharded.exchange_stall_s < 0.01 * replicated.exchange_stall_s
    assert sharded.unstalled_s == pytest.approx(replicated.unstalled_s, rel=0.2)
