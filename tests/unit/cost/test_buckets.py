"""DDP's buckets, and when they are full."""

from typing import Any

import pytest

from tuner.cost.memory.shards import BUCKET_BYTES, FIRST_BUCKET_BYTES, ddp_buckets
from tuner.model import published_model as read


# What other libraries say when they are first imported is no fault of what is tested here.
@pytest.mark.filterwarnings("ignore")
def test_buckets_are_those_of_the_dry_run() -> None:
    from workers.probe import ddp

    assert (ddp.FIRST_BUCKET_BYTES, ddp.BUCKET_BYTES) == (FIRST_BUCKET_BYTES, BUCKET_BYTES)
    for name in ("gpt2", "llama-3.1-8b"):
        for weight_bytes in (2, 4):
            parameters = built(read(name).as_config(), weight_bytes).parameters()
            buckets = map(ddp.bytes_of, ddp.assigned(parameters))
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
