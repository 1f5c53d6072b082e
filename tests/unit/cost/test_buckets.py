"""DDP's buckets, and when they are full."""

from typing import Any

import pytest

from tuner.cost.memory.shards import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    ddp_buckets,
    full_buckets_bytes,
)
from tuner.model import published_model as read


def test_buckets_hold_every_gradient_once_and_reach_their_caps() -> None:
    model = read("stories15m")
    first, *others, last = ddp_buckets(model, 4)
    assert first + sum(others) + last == 4 * model.parameters
    assert first >= FIRST_BUCKET_BYTES
    assert all(size >= BUCKET_BYTES for size in others)


def test_buckets_fill_as_backward_comes_down() -> None:
    model = read("stories15m")
    full = full_buckets_bytes(model, 4)
    assert len(full) == model.layers + 1
    assert list(full) == sorted(full, reverse=True)
    assert full[0] < 4 * model.parameters  # the embedding's gradient is missing
    assert {0, *ddp_buckets(model, 4)[:1]} & {full[-1]}


# What other libraries say when they are first imported is no fault of what is tested here.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "qwen2.5-0.5b", "llama-3.1-8b"])
@pytest.mark.parametrize("weight_bytes", [2, 4])
def test_buckets_are_those_of_the_dry_run(name: str, weight_bytes: int) -> None:
    from workers.probe import replica

    assert (replica.FIRST_BUCKET_BYTES, replica.BUCKET_BYTES) == (FIRST_BUCKET_BYTES, BUCKET_BYTES)
    parameters = built(read(name).as_config(), weight_bytes).parameters()
    buckets = map(replica.bytes_of, replica.assigned(parameters))
    assert tuple(buckets) == ddp_buckets(read(name), weight_bytes)


def built(fields: dict[str, Any], weight_bytes: int) -> Any:
    """What transformers builds, without memory for parameters."""
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**fields)
    with init_empty_weights():
        model = AutoModelForCausalLM._model_mapping[type(config)]._from_config(config)
    model.tie_weights()
    return model.to({2: torch.bfloat16, 4: torch.float32}[weight_bytes])
