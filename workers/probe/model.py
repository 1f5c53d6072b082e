"""Build the model from its configuration: random weights, never a checkpoint, never the network."""

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workers.probe.data import mixed_seed

WEIGHTS_STD = 0.02
"""Standard deviation of random weights where the configuration names none: GPT-2's, which
nearly every decoder since has kept (``initializer_range``)."""


def build_on_meta(config: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters on the meta device and real buffers (rotary frequencies).

    Args:
        config: fields of the configuration, ``model_type`` among them.
        dtype: of the parameters.

    Raises:
        ValueError: transformers refuses the configuration.
    """
    settings = _configuration(config)
    architecture = AutoModelForCausalLM._model_mapping[type(settings)]
    attention = "sdpa" if architecture._supports_sdpa else "eager"  # gemma2 caps its scores
    with init_empty_weights(include_buffers=False):
        model = architecture._from_config(settings, attn_implementation=attention, dtype=dtype)
    model.tie_weights()  # building on the meta device unties them
    model.train()
    return model


def _configuration(config: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in config.items() if name != "model_type"}
    try:
        return AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    except Exception as error:  # its validation raises classes of several libraries
        raise ValueError(f"transformers refuses the configuration: {error}") from error


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder's blocks, in order: the unit of sharding and of checkpointing."""
    names = set(model._no_split_modules or ())
    # FSDP2 puts a class of its own before a layer's
    return [m for m in model.modules() if names & {kind.__name__ for kind in type(m).__mro__}]


def decoder_layer_class(model: PreTrainedModel) -> str:
    """Class name of the decoder's blocks.

    Raises:
        ValueError: the model names none.
    """
    layers = decoder_layers(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} names no decoder layer to shard")
    return type(layers[0]).__name__


def check_experts(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Refuse packed experts that transformers' default, a grouped product, cannot multiply.

    Args:
        model: with its parameters whole.
        dtype: that experts are computed in.

    Raises:
        ValueError: a row of an expert's weight, or of what it is multiplied with, is not a
            multiple of 16 bytes (``check_valid_strides_and_return_transposed`` in
            ATen/native/GroupedMMUtils.h).
    """
    if model.config.get_text_config()._experts_implementation != "grouped_mm":
        return
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3 and any(n * dtype.itemsize % 16 for n in parameter.shape[1:]):
            raise ValueError(
                f"{name} has experts of {tuple(parameter.shape[1:])} in {dtype}: a grouped matrix"
                " product takes rows of a multiple of 16 bytes only"
            )


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move buffers to ``device``; parameters stay where they are."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


class WeightFiller:
    """Gives every parameter the same random weights however it is sharded.

    Made before the model is sharded by data parallelism, and called after: it remembers
    which part of each parameter tensor parallelism has left to this rank. Weights depend on
    the seed and the parameter's name alone, so all settings of a study start alike.

    Args:
        model: with parameters on the meta device, after tensor parallelism.
        seed: of the weights.
        device: where random numbers are drawn. Kinds of device draw differently, so this is
            the probe's own device even where parameters live in host memory.
        shard_rank: this rank's place on the axis that FSDP2 shards over.
        shard_size: ranks on that axis.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        seed: int,
        device: torch.device,
        shard_rank: int,
        shard_size: int,
    ) -> None:
        config = model.config.get_text_config()
        self._std = float(getattr(config, "initializer_range", None) or WEIGHTS_STD)
        self._scale_fill = 0.0 if config.model_type.startswith("gemma") else 1.0
        self._seed, self._device = seed, device
        self._shard_rank, self._shard_size = shard_rank, shard_size
        self._tensor_parallel = {
            name: _tensor_parallel_slice(p) for name, p in model.named_parameters()
        }
        self._shapes = {name: p.shape for name, p in model.named_parameters()}

    @torch.no_grad()
    def fill(self, model: nn.Module, *, sharded: bool) -> None:
        """Fill all parameters in place; they are on their device, with undefined values."""
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            part = self._tensor_parallel[name](self._weights(name))
            if sharded:
                part = _shard(part, self._shard_rank, self._shard_size)
            local.copy_(part)

    def _weights(self, name: str) -> torch.Tensor:
        shape, device = self._shapes[name], self._device
        if name.endswith("bias"):
            return torch.zeros(shape, device=device)
        if len(shape) == 1:  # scales of norms; gemma's are offsets from one
            return torch.full(shape, self._scale_fill, device=device)
        generator = torch.Generator(device)
        generator.manual_seed(mixed_seed(self._seed, name))
        return torch.empty(shape, device=device).normal_(0, self._std, generator=generator)


class _tensor_parallel_slice:  # noqa: N801  (a function with memory)
    """Cuts out what tensor parallelism has left of a parameter to this rank."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._cuts: list[tuple[int, int, int]] = []
        if not isinstance(parameter, DTensor):
            return
        for axis, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard):
                rank = parameter.device_mesh.get_local_rank(axis)
                self._cuts.append((placement.dim, rank, parameter.device_mesh.size(axis)))

    def __call__(self, full: torch.Tensor) -> torch.Tensor:
        for dim, rank, size in self._cuts:
            full = full.chunk(size, dim)[rank]
        return full


def _shard(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """FSDP2's part of a tensor: chunks of dim 0, of which the last may be short or missing."""
    chunks = tensor.chunk(size, 0)
    return chunks[rank] if rank < len(chunks) else tensor[:0]
