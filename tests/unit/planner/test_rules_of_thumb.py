"""Which settings of an unnamed model come first, and which are taken to need more."""

import pytest

from tests.models import TINY
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import read_model_config
from tuner.planner.prior import need_by_rule, step_by_rule


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("micro_batch_size=4", "micro_batch_size=2,gradient_accumulation_steps=2"),
        ("sharding=ddp", "sharding=full_shard"),
        ("tp_size=1", "tp_size=2"),
        ("activation_checkpointing=none", "activation_checkpointing=full"),
        ("sharding=full_shard", "sharding=full_shard,cpu_offload=true"),
        (
            "gradient_accumulation_steps=4,sync_each_batch=false",
            "gradient_accumulation_steps=4,sync_each_batch=true",
        ),
    ],
)
def test_what_comes_first(first: str, later: str) -> None:
    lengths = [step_by_rule(parse_settings(text)).value for text in (first, later)]
    assert None not in lengths
    assert lengths[0] < lengths[1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("micro_batch_size=4", "micro_batch_size=2"),
        ("sharding=ddp", "sharding=full_shard"),
        ("tp_size=1", "tp_size=2"),
        ("activation_checkpointing=none", "activation_checkpointing=full"),
    ],
)
def test_what_is_taken_to_need_more(more: str, less: str) -> None:
    question = Question(
        workload=Workload(
            model=read_model_config(TINY, name="tiny"), sequence_length=32, global_batch_size=8
        ),
        cluster=parse_cluster("8xa100-80gb"),
        framework=framework("torch"),
    )
    assert need_by_rule(question, parse_settings(more)) > need_by_rule(
        question, parse_settings(less)
    )
