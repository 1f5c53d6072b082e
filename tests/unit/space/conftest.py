"""Makers of questions for the tests of the space."""

import pytest

from tests.questions import question_about
from tuner.core.framework import framework
from tuner.model import read_model_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

VERSIONS = {
    "torch": {"torch": "2.13.0"},
    "accelerate": {"accelerate": "1.15.0", "torch": "2.13.0"},
    "trainer": {"transformers": "5.23.0", "accelerate": "1.15.0", "torch": "2.13.0"},
    "nanotron": {"nanotron": "0.4"},
    "deepspeed": {"deepspeed": "0.19.8"},
}


def make_question(
    cluster="8xa100-80gb",
    batch=64,
    *,
    name="torch",
    versions=None,
    config=None,
    only=None,
    sequence_length=2048,
    **knobs,
):
    """A question about a Llama of 8B's shape with changes, or about ``only`` another model."""
    model = read_model_config(only or {**LLAMA, **(config or {})}, name="model")
    stack = framework(name, {**VERSIONS[name], **(versions or {})}, {})
    return question_about(model, cluster, stack, tokens=sequence_length, batch=batch, knobs=knobs)


@pytest.fixture(scope="session")
def ask():
    """Makes a question."""
    return make_question
