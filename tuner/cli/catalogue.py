"""``tuner models`` and ``tuner gpus``: the names that there are, with what is known of each."""

from typing import Any

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.cli.console import print_rows
from tuner.cli.errors import print_json
from tuner.cost.memory.tensors import counts
from tuner.model import published_model
from tuner.text import size_text


def show_models(begun: str, *, as_json: bool) -> int:
    """List the models whose names hold ``begun``; the exit code, 1 without any."""
    found = [published_model(name) for name in models.names() if begun.lower() in name]
    # Of a type that only dry runs know nothing is counted.
    listed: list[dict[str, Any]] = [
        {
            "name": one.name,
            "model_type": one.model_type,
            "parameters": None if one.is_traced else counts(one).parameters,
            "active_parameters": None if one.is_traced else counts(one).active_parameters,
            "layers": one.layers,
            "longest_sequence": one.max_sequence_length,
        }
        for one in found
    ]
    if as_json:
        print_json({"models": listed})
    elif listed:
        rows = [
            (
                one["name"],
                one["model_type"],
                _billions(one["parameters"]),
                _billions(one["active_parameters"]),
                str(one["layers"]),
                f"{one['longest_sequence']:,}",
            )
            for one in listed
        ]
        heads = ("model", "type", "billion", "active", "layers", "longest")
        print_rows(heads, rows, "billion,active,layers,longest")
    return 0 if found else 1


def _billions(parameters: int | None) -> str:
    return "-" if parameters is None else f"{parameters / 1e9:.3g}"


def show_gpus(begun: str, *, as_json: bool) -> int:
    """List the kinds of GPUs whose names hold ``begun``; the exit code, 1 without any."""
    found = [one for one in gpu_kinds().values() if begun.lower() in one.name]
    if as_json:
        listed = [
            {"name": one.name, "title": one.title, "memory_bytes": one.memory_bytes,
             "bf16_flops_per_s": one.bf16_flops_per_s,
             "memory_bytes_per_s": one.memory_bytes_per_s,
             "intra_node_bytes_per_s": one.intra_node.bytes_per_s,
             "inter_node_bytes_per_s": one.inter_node.bytes_per_s}
            for one in found
        ]  # fmt: skip
        print_json({"gpus": listed})
    else:
        rows = [
            (one.name, size_text(one.memory_bytes),
             f"{one.bf16_flops_per_s / 1e12:.0f}" if one.bf16_flops_per_s else "-",
             *(f"{rate / 1e9:.0f}" for rate in (one.memory_bytes_per_s,
               one.intra_node.bytes_per_s, one.inter_node.bytes_per_s)))
            for one in found
        ]  # fmt: skip
        numbers = ("memory", "bf16\nTFLOP/s", "memory\nGB/s", "in node\nGB/s", "beyond\nGB/s")
        if rows:
            print_rows(("gpu", *numbers), rows, ",".join(numbers))
    return 0 if found else 1
