"""The parameters of every supported type, held against transformers' own models; DDP's buckets."""

import pytest

from tuner.cost.memory.shards import BUCKET_BYTES, FIRST_BUCKET_BYTES, ddp_buckets
from tuner.cost.memory.tensors import buffer_bytes, counts, model_tensors
from tuner.model import published_model as read
from tuner.model import read_model_config
from tuner.model.fields import ARCHITECTURES

# What other libraries say when they are first imported is no fault of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 16,
}  # fmt: skip
MORE = {
    "gpt2": {"n_inner": None},
    "gemma2": {"query_pre_attn_scalar": 8, "head_dim": 8},
    "gemma3_text": {"query_pre_attn_scalar": 8, "head_dim": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40, "mlp_only_layers": [0],
    },
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
    },
}  # fmt: skip
BIASES = [("llama", {"attention_bias": True, "mlp_bias": True}), ("phi", {"qk_layernorm": True}),
          ("gpt_neox", {"attention_bias": False}), ("gpt2", {"tie_word_embeddings": False}),
          ("qwen2", {"tie_word_embeddings": True})]  # fmt: skip


def config(model_type, more):
    allowed = ARCHITECTURES[model_type].fields
    sizes = {name: size for name, size in SIZES.items() if name in allowed}
    return {"model_type": model_type, **sizes, **MORE.get(model_type, {}), **more}


def built(fields):
    """What transformers builds, without memory for parameters."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {k: v for k, v in fields.items() if k != "model_type"}
    made = AutoConfig.for_model(fields["model_type"], **values)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM._model_mapping[type(made)]._from_config(made)
    model.tie_weights()
    return model


def test_tensors_are_those_of_transformers():
    for model_type, more in [*((name, {}) for name in ARCHITECTURES), *BIASES]:
        model = read_model_config(config(model_type, more), "tiny")
        tensors = list(model_tensors(model).all)
        assert sum(tensor.elements for tensor in tensors) == counts(model).parameters
        real = built(model.as_config())
        assert [(t.rows, t.columns) for t in tensors] == [
            (p.shape[0], p.numel() // p.shape[0]) for p in real.parameters()
        ]
        assert buffer_bytes(model) == sum(b.numel() * b.element_size() for b in real.buffers())


def test_ddp_s_buckets_are_those_of_the_dry_run():
    import torch

    from workers.probe import ddp

    assert (ddp.FIRST_BUCKET_BYTES, ddp.BUCKET_BYTES) == (FIRST_BUCKET_BYTES, BUCKET_BYTES)
    for name in ("gpt2", "llama-3.1-8b"):
        for weight_bytes, dtype in ((2, torch.bfloat16), (4, torch.float32)):
            parameters = built(read(name).as_config()).to(dtype).parameters()
            buckets = map(ddp.bytes_of, ddp.assigned(parameters))
            assert tuple(buckets) == ddp_buckets(read(name), weight_bytes)
