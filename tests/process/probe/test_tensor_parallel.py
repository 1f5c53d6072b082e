"""The parts of tensor parallelism by themselves; training is held in ``test_agreement.py``."""

import json
from types import SimpleNamespace

import pytest

from tests.process.probe.specs import run_program
from workers.probe.tensor_parallel import VERIFIED_MODEL_TYPES, UnsupportedByTensorParallel, check

# One gathered activation of the tiny models: micro-batch, sequence, hidden, float32.
GATHERED_BYTES = 2 * 16 * 32 * 4


def test_its_parts_on_four_ranks(preloaded, tmp_path):
    run_program(preloaded, "tensor_parallel_ranks.py", tmp_path, 4, 4)
    found = json.loads((tmp_path / "found.json").read_text())
    said = found["refusals"]
    assert "num_key_value_heads is 1, which 2 does not divide" in said["heads"]
    assert "intermediate_size is 49, which 2 does not divide" in said["mlp"]
    assert "a mesh of one axis" in said["mesh"]
    assert "15 tokens does not split over 2 ranks" in said["sequence"]
    assert found["norms"]["split"] == pytest.approx(found["norms"]["whole"], rel=1e-6)
    assert "not yet summed" in found["partial"]["refused"]
    assert found["partial"]["summed"] == 4.0  # the norm of (2, 2, 2, 2)
    assert set(found["loss_errors"]) == {"mean", "sum", "shifted"}
    assert max(found["loss_errors"].values()) < 1e-6  # transformers' own
    # recomputation keeps shards in the place of what is gathered: for attention and MLP of each
    # layer, and the head; experts gather nothing
    for name, gathers in (("tied", 5), ("experts", 3)):
        off, on = found["saved"][name]
        assert off - on == gathers * GATHERED_BYTES / 2, name
    ours, transformers_own = found["gathered"]
    assert ours - transformers_own == 2 * 16  # the embedding's mask of tokens, a byte each


def test_models_are_checked_with_the_reason():
    for model_type in VERIFIED_MODEL_TYPES:
        check(model_type, SimpleNamespace(attention_dropout=0.0, output_router_logits=False))
    for model_type, field, value, reason in (
        ("gpt2", "n_layer", 2, "no verified tensor-parallel plan"),
        ("llama", "attention_dropout", 0.1, "random stream"),
        ("mixtral", "router_jitter_noise", 0.01, "random stream"),
        ("qwen3_moe", "output_router_logits", True, "auxiliary loss"),
    ):
        with pytest.raises(UnsupportedByTensorParallel, match=reason):
            check(model_type, SimpleNamespace(**{field: value}))
