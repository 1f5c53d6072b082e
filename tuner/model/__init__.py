"""A model's shape: a Hugging Face ``config.json`` read as data, and what follows from it.

An allow-list says which fields there may be (:mod:`tuner.model.fields`), an object is held against
it (:mod:`tuner.model.checks`), and layers are told by their kind (:mod:`tuner.model.shape`).
"""

from tuner.model.shape import (
    LARGEST_FILE_BYTES,
    ModelConfig,
    load_model,
    published_model,
    read_model_config,
)

__all__ = [
    "LARGEST_FILE_BYTES",
    "ModelConfig",
    "load_model",
    "published_model",
    "read_model_config",
]
