"""The model and its tokens: built from a configuration, random, never from the network."""

import copy
import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from workers.probe.errors import AdapterUnavailableError
from workers.probe.fused_loss import fuse_loss
from workers.probe.quantized import quantize, quantize_layers, quantized_linears
from workers.probe.spec import TASKS, Spec

# Elements from which what ``zeros`` or ``empty`` make is a parameter: such buffers are smaller.
LARGE = 2**26
# Standard deviation of random weights where the configuration names none: GPT-2's, which nearly
# every decoder since has kept (``initializer_range``).
WEIGHTS_STD = 0.02


class _LargeOnMeta(TorchFunctionMode):
    """Makes large tensors on the meta device at once: accelerate moves parameters there after they
    are made, and the experts of one layer of Llama 4 Maverick are 21 GB of zeros."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (torch.empty, torch.zeros) and args and given.get("device") is None:
            sizes = args[0] if isinstance(args[0], list | tuple) else args
            if math.prod(sizes) >= LARGE:
                given = {**given, "device": "meta"}
        return func(*args, **given)


def build_on_meta(
    config: Mapping[str, Any],
    dtype: torch.dtype,
    attention: str = "sdpa",
    task: str = "causal_lm",
) -> PreTrainedModel:
    """The model with parameters on the meta device and real buffers (rotary frequencies). Raises
    ValueError: transformers refuses the configuration."""
    # copied, for configurations fill in their rotary parameters in place
    fields = {name: copy.deepcopy(one) for name, one in config.items() if name != "model_type"}
    try:
        settings: Any = AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    except Exception as error:  # its validation raises classes of several libraries
        raise ValueError(f"transformers refuses the configuration: {error}") from error
    architecture = getattr(transformers, TASKS[task])._model_mapping[type(settings)]
    if isinstance(architecture, tuple):  # of Funnel's, whose layers some go without
        architecture = architecture[0]
    if task == "sequence_classification":
        if getattr(settings, "pad_token_id", None) is None:
            settings.pad_token_id = 0  # a decoder finds the last token of a row by it
        # DeBERTa would look into the labels for what it is not told
        kind = "regression" if settings.num_labels == 1 else "single_label_classification"
        settings.problem_type = settings.problem_type or kind
    # of several parts the language model alone, as ``from_config`` in auto_factory.py does
    if architecture.config_class is type(settings).sub_configs.get("text_config"):
        settings = settings.get_text_config()
    if attention == "sdpa" and not architecture._supports_sdpa:
        attention = "eager"  # gemma2 caps its scores
    with init_empty_weights(include_buffers=False), _LargeOnMeta():
        model = architecture._from_config(settings, attn_implementation=attention, dtype=dtype)
    model.tie_weights()  # building on the meta device unties them
    model.train()
    return model


@cache
def _vocabulary(model_type: str) -> int:
    settings: Any = AutoConfig.for_model(model_type)
    return int(settings.get_text_config().vocab_size)


def vocabulary(config: Mapping[str, Any]) -> int:
    """Rows of the token embedding, of a configuration that may leave it to its class or a part."""
    text = config.get("text_config")
    given = config.get("vocab_size") or (text or {}).get("vocab_size")
    return int(given or _vocabulary(config["model_type"]))


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's blocks, in order: the unit of sharding and of checkpointing. Of a model that sees
    images they are those of its language model."""
    if hasattr(model.config, "vision_config"):
        whole: Any = getattr(model, "get_base_model", lambda: model)()
        model = whole.get_decoder()
    names = set(model._no_split_modules or ())
    # FSDP2 puts a class of its own before a layer's
    named = [m for m in model.modules() if names & {kind.__name__ for kind in type(m).__mro__}]
    # some types name none; then what transformers checkpoints are the blocks
    checkpointed = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList)]
    listed = {id(one) for each in lists for one in each}
    # encoders name their embeddings too, which are in no list, or parts of blocks
    for found in (named, checkpointed):
        if blocks := [m for m in found if id(m) in listed]:
            return blocks
    return named or max(lists, key=len, default=[])


def output_head(model: Any) -> nn.Module:
    """The module that makes logits; a classifier's is its last linear layer."""
    head: nn.Module | None = model.get_output_embeddings()
    return head or [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


def check_experts(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Refuse packed experts that transformers' default, a grouped product, cannot multiply. Raises
    ValueError: a row of an expert's weight, or of what it is multiplied with, is not a multiple of
    16 bytes (``check_valid_strides_and_return_transposed`` in ATen/native/GroupedMMUtils.h)."""
    if model.config.get_text_config()._experts_implementation != "grouped_mm":
        return
    convolutions = {id(m.weight) for m in model.modules() if isinstance(m, nn.Conv1d)}
    for name, parameter in model.named_parameters():
        if id(parameter) in convolutions:
            continue
        if parameter.ndim == 3 and any(n * dtype.itemsize % 16 for n in parameter.shape[1:]):
            raise ValueError(
                f"{name} has experts of {tuple(parameter.shape[1:])} in {dtype}: a grouped matrix"
                " product takes rows of a multiple of 16 bytes only"
            )


def move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


class WeightFiller:
    """Gives every parameter the same random weights however it is sharded.

    Made before the model is sharded by data parallelism, and called after: it remembers the part of
    each parameter that tensor parallelism has left to this rank. Weights depend on the seed and the
    parameter's name alone, so all configurations of a study start alike.

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
        # scales of norms; gemma's are offsets from one
        self._scale_fill = 0.0 if config.model_type.startswith("gemma") else 1.0
        self._seed, self._device = seed, device
        self._shard_rank, self._shard_size = shard_rank, shard_size
        self._own_parts = {n: _tensor_parallel_part(p) for n, p in model.named_parameters()}
        self._shapes = {name: p.shape for name, p in model.named_parameters()}
        for name, linear in quantized_linears(model).items():
            self._shapes[name] = torch.Size((linear.out_features, linear.in_features))

    @torch.no_grad()
    def fill(self, model: nn.Module, *, sharded: bool) -> None:
        """Fill all parameters in place; they are on their device, with undefined values."""
        quantized = quantized_linears(model)
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            full = torch.empty(self._shapes[name], device=self._device)
            if name.endswith("bias"):
                full.zero_()
            elif full.ndim == 1:
                full.fill_(self._scale_fill)
            else:
                generator = torch.Generator(self._device)
                generator.manual_seed(mixed_seed(self._seed, name))
                full.normal_(0, self._std, generator=generator)
            if name in quantized:
                full = quantize(quantized[name], full)
            part = self._own_parts[name](full)
            if sharded:
                # FSDP2's part: chunks of dim 0, of which the last may be short or missing
                chunks = part.chunk(self._shard_size, 0)
                rank = self._shard_rank
                part = chunks[rank] if rank < len(chunks) else part[:0]
            local.copy_(part)


def _tensor_parallel_part(parameter: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Cuts out of a whole parameter what tensor parallelism has left of it to this rank."""
    cuts: list[tuple[int, int, int]] = []
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        cuts += [
            (placement.dim, mesh.get_local_rank(axis), mesh.size(axis))
            for axis, placement in enumerate(parameter.placements)
            if isinstance(placement, Shard)
        ]

    def cut(full: torch.Tensor) -> torch.Tensor:
        for dim, rank, size in cuts:
            full = full.chunk(size, dim)[rank]
        return full

    return cut


def micro_batches(spec: Spec, *, step: int, count: int, data_rank: int) -> list[torch.Tensor]:
    """Tokens of one optimizer step of one data-parallel rank.

    All ranks draw the whole global batch of ``step`` from the same seed and take their own
    rows, so that every configuration trains on the same sequences in some order. A rank that runs
    alone draws its own only: nothing is compared with other ranks.

    Returns:
        ``count`` int64 tensors of shape (micro_batch_size, sequence_length), on the CPU.
    """
    generator = torch.Generator().manual_seed(mixed_seed(spec.seed, step))
    ranks = 1 if spec.is_alone else spec.data_parallel_size
    rows = ranks * spec.settings.micro_batch_size * count
    size = (rows, spec.sequence_length)
    tokens = torch.randint(0, vocabulary(spec.model), size, generator=generator)
    grid = tokens.view(count, ranks, -1, spec.sequence_length)
    # copies: a view would hold the tokens of all ranks
    return [grid[index, data_rank % ranks].clone() for index in range(count)]


def mixed_seed(seed: int, what: object) -> int:
    """A seed of 32 bits, which is all that torch's CPU generator looks at."""
    return zlib.crc32(f"{seed} {what}".encode())


def freeze(model: Any, parts: list[str]) -> None:
    """Leave parts of a model untrained: ``embeddings``, ``head``, or names of its modules, in which
    a range of numbers stands for each of them: ``layers.0-15``. Raises ValueError: a part has no
    parameters, or nothing is left to train."""
    ends = {"embeddings": "get_input_embeddings", "head": "get_output_embeddings"}

    def pattern(name: str) -> str:
        first, _, last = name.partition("-")
        numbers = range(int(first), int(last) + 1) if last else (name,)
        return f"({'|'.join(map(str, numbers))})"

    for part in parts:
        if part in ends:
            found = list(getattr(model, ends[part])().parameters())
        else:
            inside = re.compile(rf"(^|\.){'[.]'.join(map(pattern, part.split('.')))}(\.|$)")
            named = model.named_parameters(remove_duplicate=False)
            found = [p for name, p in named if inside.search(name)]
        if not found:
            raise ValueError(f"frozen: {type(model).__name__} has no parameter in {part}")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"frozen: {', '.join(parts)} leave nothing to train")


def add_adapter(
    model: PreTrainedModel, adapter: Mapping[str, Any], *, trains_fp32: bool, checkpointed: bool
) -> Any:
    """The model with peft's LoRA in its linear layers, on its own device; all else is frozen, and
    with QLoRA quantized.

    As ``get_peft_model`` in a training script: a model whose layers are ``checkpointed`` has its
    embedded tokens ask for a gradient. peft itself makes adapters fp32 wherever the model is
    narrower (``autocast_adapter_dtype``); that is left to it where precision is mixed. In bf16 they
    are bf16, as all that is trained.

    Raises:
        AdapterUnavailableError: peft is not installed, or bitsandbytes.
        ValueError: peft refuses it.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise AdapterUnavailableError("adapters need peft: pip install 'tuner[peft]'") from error
    if adapter["method"] == "qlora":
        quantize_layers(model, decoder_layers(model), adapter)
    targets = adapter["target_modules"]
    config = LoraConfig(
        r=adapter["rank"],
        lora_alpha=adapter["alpha"],
        lora_dropout=adapter["dropout"],
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        modules_to_save=adapter.get("modules_to_save"),
        task_type="CAUSAL_LM",
    )
    wrapped = get_peft_model(
        model, config, autocast_adapter_dtype=trains_fp32, low_cpu_mem_usage=True
    )
    if checkpointed and adapter["method"] == "qlora":
        # peft leaves it to ``prepare_model_for_kbit_training``, which also makes fp32 of what is
        # not quantized; TRL does without that
        model.enable_input_require_grads()
    if not trains_fp32:  # as peft does where weights are on a device, and on the meta device not
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(model.dtype)
    return wrapped


# Liger's loss alone: it would swap norms, rotations and MLPs too.
LIGER_CONFIG = {
    "fused_linear_cross_entropy": True,
    "cross_entropy": False,
    "rope": False,
    "rms_norm": False,
    "swiglu": False,
    "geglu": False,
}


def set_loss(model: PreTrainedModel, kind: str, *, fused_by: str) -> None:
    """Gives the model the loss of this kind; ``hf`` leaves it its own.

    One that is fused, by ``liger`` or ``chunked``, is the same whatever the kind.
    """
    if fused_by == "liger":  # as the Trainer does (``integrations/liger.py``, transformers 5.23)
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model, **LIGER_CONFIG)
    elif fused_by:
        fuse_loss(model)
    elif kind != "hf":
        own: Any = partial(cross_entropy_loss, widens=kind == "fp32")
        model.loss_function = own


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, *, widens: bool, **_: Any
) -> torch.Tensor:
    """The mean over tokens, each predicted from those before it; with ``widens`` in fp32."""
    targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    flat = logits.view(-1, vocab_size)
    return functional.cross_entropy(flat.float() if widens else flat, targets)
