import pytest

from tuner.catalog.models import read
from tuner.cluster import parse_cluster
from tuner.cost.collectives import axis_sizes, step_collectives
from tuner.cost.communication import Computing, exposed_s, link_seconds, passes_s
from tuner.cost.constants import default_costs
from tuner.settings import parse_settings
from tuner.workload import Workload

COSTS = default_costs()
CLUSTER = parse_cluster("4x8xh100-80gb")
WORKLOAD = Workload(model=read("llama-3.1-8b"), sequence_length=4096, global_batch_size=256)
TEXTS = (
    "sharding=ddp",
    "sharding=full_shard",
    "sharding=shard_grad_op,gradient_accumulation_steps=4,sync_each_batch=false",
    "sharding=hybrid_shard,gradient_accumulation_steps=4",
    "sharding=full_shard,tp_size=8,tp_recompute_allgather=true",
)


def exposed(text: str, forward: float, backward: float, passes: int | None = None) -> tuple:
    settings = parse_settings(text)
    found = exposed_s(
        Computing(forward=forward, backward=backward),
        step_collectives(WORKLOAD, settings, CLUSTER),
        settings,
        CLUSTER,
        passes=passes or settings.gradient_accumulation_steps,
    )
    return found.low, found.value, found.high


@pytest.mark.parametrize("text", TEXTS)
def test_a_step_that_was_timed_waits_as_one_that_is_predicted(text: str) -> None:
    """The same list has the same price, whoever made it."""
    settings = parse_settings(text)
    collectives = step_collectives(WORKLOAD, settings, CLUSTER)
    links = link_seconds(collectives, axis_sizes(settings, CLUSTER), CLUSTER, COSTS)
    passes = settings.gradient_accumulation_steps
    synced = passes if settings.sync_each_batch else 1
    computing = Computing(forward=0.3, backward=0.6)
    predicted = passes_s(computing, links, passes=passes, synced=synced, costs=COSTS)
    assert exposed(text, 0.3, 0.6)[1] == pytest.approx(predicted - 0.9)


@pytest.mark.parametrize("text", TEXTS)
def test_the_interval_is_of_faster_and_slower_links(text: str) -> None:
    low, value, high = exposed(text, 0.3, 0.6)
    assert 0 < low < value < high


def test_long_computing_hides_more_and_never_all() -> None:
    long, short = (exposed("sharding=full_shard", s, 2 * s)[1] for s in (1.0, 0.001))
    assert 0 < long < short


def test_nothing_is_waited_for_on_one_gpu() -> None:
    settings, cluster = parse_settings("micro_batch_size=1"), parse_cluster("h100-80gb")
    found = exposed_s(
        Computing(forward=0.1, backward=0.2),
        step_collectives(WORKLOAD, settings, cluster),
        settings,
        cluster,
        passes=1,
    )
    assert (found.low, found.value, found.high) == (0, 0, 0)
