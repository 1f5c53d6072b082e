"""A model that is not named: that of a user's own script, of which nothing is known."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tuner.model import ModelConfig, read_model_config

NAME = "a model that is not named"
"""What people see in the place of a model's name."""
FIELDS: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 2,
    "hidden_size": 5040,
    "intermediate_size": 5040,
    "num_hidden_layers": 840,
    "num_attention_heads": 2520,
    "num_key_value_heads": 2520,
    "max_position_embeddings": 2**22,
}
"""In the place of a configuration, such as no model has: its sizes rule out no parallel size up to
ten, and no sequence length. No number comes from it."""


@cache
def unnamed_model() -> ModelConfig:
    """What stands for a model that is not named."""
    return read_model_config(FIELDS, name=NAME)


def is_named(model: ModelConfig) -> bool:
    """Whether something is known of a model."""
    return model.fingerprint != unnamed_model().fingerprint


def shown_workload(workload: Mapping[str, Any]) -> dict[str, Any]:
    """A workload's plain values as they are shown: of an unnamed model no configuration."""
    is_known = workload["model_name"] != NAME
    return dict(workload) if is_known else {**workload, "model": None}


def shown_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """A question's plain values as they are shown, with its workload as above."""
    return {**question, "workload": shown_workload(question["workload"])}
