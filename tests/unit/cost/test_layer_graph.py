import pytest

from tuner.catalog.models import names
from tuner.core.cluster import Device
from tuner.cost.memory.attention import Attention
from tuner.cost.memory.graph import EventKind
from tuner.cost.memory.layers import LayerKey, layer_program
from tuner.cost.memory.shards import model_units
from tuner.cost.memory.tensors import model_tensors
from tuner.model import published_model as read
from tuner.model import read_model_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}
TOKENS = 32
NEVER_SPLIT = ("gpt2", "gpt_bigcode", "gpt_neox", "mpt")
FUSED = Attention()


def layer(config=LLAMA, *, sparse=False, **fields):
    key = {
        "model": read_model_config(config, name="model"),
        "sequence_length": TOKENS,
        "compute_bytes": 2,
        "residual_bytes": 2,
        "tp": 1,
        "recompute": False,
        "device": Device.CUDA,
        "attention": FUSED,
    }
    return layer_program(LayerKey(**{**key, **fields}), sparse=sparse, sliding=False)


def per_token(program):
    return program.kept_bytes / TOKENS


def test_what_a_llama_layer_keeps():
    norms = 2 * ((4 + 2 + 2) * 64 + 4)  # input in fp32, its size, normed, weighed: of two norms
    attention = 2 * (64 + 16 + 16 + 64) + 4 * 8  # q, k, v, output; one fp32 per head
    mlp = 4 * 2 * 256  # gate, up, activated gate, product
    program = layer()
    assert per_token(program) == norms + attention + mlp
    assert not program.saves_input
    weights = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 256 + 2 * 64
    assert program.weight_elements == weights


def test_weights_are_those_of_the_model():
    for name in {read(one).model_type: one for one in names()}.values():
        for tp_size in [1, 2]:
            model = read(name)
            if model.is_traced or (tp_size > 1 and model.model_type in NEVER_SPLIT):
                continue
            units = model_units(model, tp_size, 1).layers
            for sparse, unit in dict(
                zip(model_tensors(model).is_sparse, units, strict=True)
            ).items():
                key = LayerKey(
                    model=model, sequence_length=TOKENS, compute_bytes=2, residual_bytes=2,
                    tp=tp_size, recompute=False, device=Device.CUDA, attention=FUSED,
                )  # fmt: skip
                assert (
                    layer_program(key, sparse=sparse, sliding=False).weight_elements == unit.whole
                )


def test_tensor_parallelism_keeps_gathered_inputs_or_shards():
    kept, again = layer(tp=2), layer(tp=2, recompute=True)
    assert per_token(kept) - per_token(again) == 2 * 2 * (64 - 32)
    assert per_token(again) == per_token(layer()) / 2
    assert again.weight_elements == pytest.approx(layer().weight_elements / 2, rel=0.01)
    work = [
        sum(s for k, s in p.backward if k is EventKind.PASSING and s > 0) for p in (kept, again)
    ]
    assert work[0] < work[1]


def test_each_token_goes_to_its_experts():
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    program = layer(config, sparse=True)
    experts = 4 * 3 * 64 * 256
    router = 4 * 64
    attention = 2 * 64 * 64 + 2 * 64 * 16
    assert program.weight_elements == experts + router + attention + 2 * 64
    routed = 2 * 2 * (64 + 2 * 256 + 256 + 256 + 64)  # sent, both, active, product, sent back
    assert per_token(program) == pytest.approx(
        per_token(layer()) - 4 * 2 * 256 + routed, abs=2 * 2 * 64
    )
