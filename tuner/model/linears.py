"""The linear layers of a decoder layer by the names that transformers gives them."""

from collections.abc import Mapping
from typing import NamedTuple

from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import ModelConfig


class Linear(NamedTuple):
    """One linear layer, also where transformers has it as a ``Conv1D`` (GPT-2)."""

    name: str  # its module's own, such as q_proj
    inputs: int
    outputs: int


# Names in ``modeling_<model_type>.py`` of transformers 5.23, of attention and of the MLP: what
# leads out of a block comes last.
_USUAL = (("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj"))
_NAMES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "phi": (("q_proj", "k_proj", "v_proj", "dense"), ("fc1", "fc2")),
    "phi3": (("qkv_proj", "o_proj"), ("gate_up_proj", "down_proj")),
    "gpt2": (("c_attn", "c_proj"), ("c_fc", "c_proj")),
    "gpt_bigcode": (("c_attn", "c_proj"), ("c_fc", "c_proj")),
    "mpt": (("Wqkv", "out_proj"), ("up_proj", "down_proj")),
    "gpt_neox": (("query_key_value", "dense"), ("dense_h_to_4h", "dense_4h_to_h")),
}


def attention_names(model: ModelConfig) -> tuple[str, ...]:
    return _NAMES.get(model.model_type, _USUAL)[0]


def mlp_names(model: ModelConfig) -> tuple[str, ...]:
    return _NAMES.get(model.model_type, _USUAL)[1]


def linears(model: ModelConfig) -> tuple[Linear, ...]:
    """The linear layers of a dense decoder layer, in the order of its modules."""
    width, hidden = model.heads * model.head_dim, model.hidden_size
    kv, names = model.kv_heads * model.head_dim, attention_names(model)
    rows = (width, kv, kv) if len(names) == 4 else (width + 2 * kv,)
    columns = [Linear(name, hidden, size) for name, size in zip(names[:-1], rows, strict=True)]
    out = Linear(names[-1], width, hidden)
    own_order = [out, *columns] if model.model_type == "phi3" else [*columns, out]
    *into, last = mlp_names(model)
    inner = model.intermediate_size
    fused = ARCHITECTURES[model.model_type].gated and len(into) == 1
    both = [Linear(name, hidden, inner * (1 + fused)) for name in into]
    return (*own_order, *both, Linear(last, inner, hidden))
