"""Small models keep what decides how a model is trained, and nothing random."""

from importlib.resources import files

import pytest

from tuner.cost.memory.tensors import counts
from tuner.guard.replica import MOST_EXPERTS, VOCABULARY, NoReplicaError, small_model
from tuner.model import load_model, read_model_config

NAMES = sorted(
    path.name.removesuffix(".json") for path in files("tuner.catalog").joinpath("models").iterdir()
)
LLAMA = {
    "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 8, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 999, "head_dim": 64,
    "max_position_embeddings": 256,
}  # fmt: skip


def small(name, parts=2):
    return small_model(load_model(name), parts)[0]


def test_every_model_of_the_catalogue_has_a_small_one():
    for name in NAMES:
        whole = load_model(name)
        if whole.is_traced:
            with pytest.raises(NoReplicaError, match="known by dry runs alone"):
                small(name)
            continue
        found = small(name)
        assert found.model_type == whole.model_type
        assert counts(found).parameters < 4_000_000
        assert found.vocab_size == VOCABULARY
        assert found.tied_embeddings == whole.tied_embeddings
        assert set(found.layer_kinds) == set(whole.layer_kinds)
        if whole.kv_heads not in (1, whole.heads):
            assert found.heads // found.kv_heads == whole.heads // whole.kv_heads
            assert found.kv_heads % 2 == 0
        assert (found.kv_heads == found.heads) == (whole.kv_heads == whole.heads)
        assert found.intermediate_size % 16 == 0


def test_experts_are_fewer_and_several_are_chosen():
    whole = load_model("qwen3-235b-a22b")
    assert (whole.experts, whole.experts_per_token) == (128, 8)
    found = small("qwen3-235b-a22b")
    assert (found.experts, found.experts_per_token) == (MOST_EXPERTS, 2)
    assert (small("mixtral-8x7b").experts, small("mixtral-8x7b").experts_per_token) == (8, 2)


def test_many_layers_without_a_pattern():
    config = LLAMA | {"model_type": "smollm3", "num_hidden_layers": 80}
    kinds = [int(i * i % 7 < 3 or i % 11 == 0) for i in range(80)]
    with pytest.raises(NoReplicaError, match="no pattern"):
        small_model(read_model_config(config | {"no_rope_layers": kinds}, "m"), 1)
