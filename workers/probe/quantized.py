"""A frozen model in four bits, by bitsandbytes: QLoRA (https://arxiv.org/abs/2305.14314).

The linear layers of the decoder's blocks are bitsandbytes' ``Linear4bit``, put there by
transformers as ``BitsAndBytesConfig`` has it: packed in tensors of the frozen model's own format
(``bnb_4bit_quant_storage``), which FSDP2 shards and gathers like any other parameter. Embeddings,
norms and the output head stay as they are. The scales of blocks belong to the module: each rank
holds all of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from workers.probe.errors import AdapterUnavailableError

# Weights in a block with a scale of its own, and scales in a block of these where they are
# quantized too (``quantize_4bit`` in bitsandbytes/functional.py, 0.50).
BLOCK, SCALES = 64, 256


def quantize_layers(
    model: PreTrainedModel, layers: list[nn.Module], adapter: Mapping[str, Any]
) -> None:
    """Have ``Linear4bit`` in the place of the linears of ``layers``, on the meta device.

    Raises:
        AdapterUnavailableError: bitsandbytes is not installed.
        ValueError: there is nothing to quantize.
    """
    try:
        from bitsandbytes.nn import Params4bit
        from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    except ImportError as error:
        raise AdapterUnavailableError(
            "qlora needs bitsandbytes: pip install 'tuner[peft]'"
        ) from error
    dtype = model.dtype
    inside = {id(module) for layer in layers for module in layer.modules()}
    # names are looked for inside of names, so leaves alone
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    replace_with_bnb_linear(
        model,
        modules_to_not_convert=[name for name, one in linears if id(one) not in inside],
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=adapter["quantize"],
            bnb_4bit_use_double_quant=adapter["double_quant"],
            bnb_4bit_quant_storage=dtype,
            bnb_4bit_compute_dtype=dtype,
        ),
    )
    quantized = quantized_linears(model)
    if not quantized:
        raise ValueError(f"{type(model).__name__} has no linear layer to quantize")
    for linear in quantized.values():
        packed = -(-linear.in_features * linear.out_features // (2 * dtype.itemsize))
        linear.weight = Params4bit(
            torch.empty(packed, 1, dtype=dtype, device="meta"),
            quant_type=adapter["quantize"],
            compress_statistics=adapter["double_quant"],
            quant_storage=dtype,
            bnb_quantized=True,
        )
        # parameters that FSDP2 makes of it have no attributes
        linear.weight_type, linear.weight_compresses = adapter["quantize"], adapter["double_quant"]
        if linear.bias is not None:  # made in torch's default format
            linear.bias = nn.Parameter(linear.bias.to(dtype), requires_grad=False)
    loaded: Any = model
    loaded.is_loaded_in_4bit = True


def quantized_linears(model: nn.Module) -> dict[str, Any]:
    """bitsandbytes' linears by the names of their weights; none where nothing is quantized."""
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if hasattr(module, "quant_storage")
    }


def quantize(linear: Any, weight: torch.Tensor) -> torch.Tensor:
    """A whole weight packed; the scales of its blocks stay with its module."""
    from bitsandbytes.functional import quantize_4bit

    packed, linear.quant_state = quantize_4bit(
        weight.to(linear.quant_storage),
        blocksize=BLOCK,
        compress_statistics=linear.weight_compresses,
        quant_type=linear.weight_type,
        quant_storage=linear.quant_storage,
    )
    done: torch.Tensor = packed
    return done


def shape_only(model: nn.Module) -> None:
    """Make plain parameters of packed weights: fake tensors know no classes of others."""
    for linear in quantized_linears(model).values():
        linear.weight = nn.Parameter(linear.weight.data.as_subclass(torch.Tensor), False)


def add_empty_scales(model: nn.Module) -> None:
    """Gives each linear scales without values, of the shapes that :func:`quantize` leaves."""
    quantized = quantized_linears(model)
    if not quantized:  # and bitsandbytes need not be there
        return
    from bitsandbytes.functional import QuantState

    for linear in quantized.values():
        blocks = -(-linear.in_features * linear.out_features // BLOCK)
        doubles = linear.weight_compresses
        inner = None
        if doubles:
            inner = QuantState(
                absmax=torch.empty(-(-blocks // SCALES)), code=torch.empty(256),
                blocksize=SCALES, dtype=torch.float32,
            )  # fmt: skip
        linear.quant_state = QuantState(
            absmax=torch.empty(blocks, dtype=torch.uint8 if doubles else torch.float32),
            shape=torch.Size((linear.out_features, linear.in_features)),
            code=torch.empty(16),
            blocksize=BLOCK,
            quant_type=linear.weight_type,
            dtype=linear.quant_storage,
            offset=torch.empty(()) if doubles else None,
            state2=inner,
        )


def scales(model: nn.Module) -> Iterator[torch.Tensor]:
    """What modules hold of quantized weights beside these: no parameters, nor buffers."""
    for linear in quantized_linears(model).values():
        state = linear.quant_state
        tensors = [state.absmax, state.code, state.offset]
        if state.nested:
            tensors += [state.state2.absmax, state.state2.code]
        yield from (tensor for tensor in tensors if tensor is not None)
