"""The names that questions may use, with what is known of each, as plain values."""

from typing import Any

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.cost.memory.tensors import counts
from tuner.model import published_model


def listed_models(begun: str = "") -> list[dict[str, Any]]:
    """The models of the catalogue whose names hold ``begun``; of those that only dry runs know,
    nobody has counted the active parameters."""
    found = [published_model(name) for name in models.names() if begun.lower() in name]
    return [
        {"name": one.name, "model_type": one.model_type,
         "parameters": models.entry(one.name)["parameters"],
         "active_parameters": None if one.is_traced else counts(one).active_parameters,
         "layers": one.layers,
         "longest_sequence": one.max_sequence_length}
        for one in found
    ]  # fmt: skip


def listed_gpus(begun: str = "") -> list[dict[str, Any]]:
    """The kinds of GPUs whose names hold ``begun``."""
    return [
        {"name": one.name, "title": one.title, "memory_bytes": one.memory_bytes,
         "bf16_flops_per_s": one.bf16_flops_per_s,
         "memory_bytes_per_s": one.memory_bytes_per_s,
         "intra_node_bytes_per_s": one.intra_node.bytes_per_s,
         "inter_node_bytes_per_s": one.inter_node.bytes_per_s}
        for one in gpu_kinds().values()
        if begun.lower() in one.name
    ]  # fmt: skip
