"""Has whole numbers and truth values of the device computed, on the host, where no kernel runs.

Masks, positions, counts and routes decide what a script does and how large its tensors get. They
are small, and the stand-in's memory is the process's own: torch's kernel for CUDA is called for
what it allocates, then torch's for CPUs for what it gives. Fractions that are compared are zeros.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

# Elements of the largest tensor that is looked at: a mask of 32 million pairs.
MOST_ELEMENTS = 1 << 25
_PAIRS = (
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "add", "sub", "mul", "remainder"),
)
OPERATORS = (
    *(f"{name}.Tensor" for name in _PAIRS),
    *(f"{name}_.Tensor" for name in _PAIRS),
    *(f"{name}.Scalar" for name in _PAIRS[:6]),
    *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_not", "neg", "abs"),
    *("logical_and_", "logical_or_", "logical_not_", "clamp", "clamp_", "maximum", "minimum"),
    *("floor_divide", "div.Tensor_mode", "all", "all.dim", "any", "any.dim", "sum", "cumsum"),
    *("sum.dim_IntList", "max", "min", "max.dim", "min.dim", "amax", "amin", "argmax", "argmin"),
    *("histc", "sort", "sort.stable", "searchsorted.Tensor", "bucketize.Tensor"),
    *("isin.Tensor_Tensor", "copy_", "cat", "index.Tensor", "index_select", "gather"),
    *("scatter.value", "scatter.src", "scatter_add", "scatter_.value", "scatter_.src"),
    *("scatter_add_", "_index_put_impl_", "where.self", "roll"),
    *("masked_fill_.Scalar", "masked_fill_.Tensor", "flip", "tril", "triu", "fill_.Scalar"),
    *("fill_.Tensor", "zero_", "arange.start_out"),
)
# Those whose values say how large what they give is: CUDA's kernel would read a size from memory.
SIZED_BY_VALUES = (
    *("nonzero", "bincount", "repeat_interleave.Tensor", "_unique2", "unique_consecutive"),
)


def install() -> torch.library.Library:
    """Takes the place of CUDA's kernels, as long as what it gives lives."""
    library = torch.library.Library("aten", "IMPL")
    for name in (*OPERATORS, *SIZED_BY_VALUES, "topk"):
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        plain = torch.library.get_kernel(operator, "CUDA")
        if name == "topk":
            run = functools.partial(_in_turn, plain.call_boxed)
        elif name in SIZED_BY_VALUES:
            run = functools.partial(_sized, operator, plain.call_boxed)
        else:
            run = functools.partial(_computed, operator, plain.call_boxed)
        library.impl(name, run, "CUDA", with_keyset=True)
    return library


def _computed(
    operator: Any, plain: Callable[..., Any], keys: Any, /, *values: Any, **named: Any
) -> Any:
    # a Python number comes as itself, where the kernel takes a tensor without dimensions
    for place, one in enumerate(operator._schema.arguments[: len(values)]):
        if isinstance(values[place], int | float | complex) and str(one.type) == "Tensor":
            values = (*values[:place], torch.tensor(values[place]), *values[place + 1 :])
    given = plain(keys, *values, **named)
    if any(map(_is_whole, tree_leaves(given))) and _are_small((given, values, named)):
        try:
            if operator is torch.ops.aten.histc.default:  # of fractions only, on the host
                values = (_on_host(values[0]).float(), *values[1:])
            found = operator(*tree_map(_on_host, values), **tree_map(_on_host, named))
        except (IndexError, RuntimeError):  # of indices that no kernel has made: left as they are
            return given
        for out, made in zip(tree_leaves(given), tree_leaves(found), strict=True):
            if _is_whole(out):
                _on_host(out).copy_(made)
    return given


def _sized(
    operator: Any, plain: Callable[..., Any], keys: Any, /, *values: Any, **named: Any
) -> Any:
    if not _are_small((values, named)):
        return plain(keys, *values, **named)
    device = next(one.device for one in tree_leaves((values, named)) if _is_of_device(one))
    found = operator(*tree_map(_on_host, values), **tree_map(_on_host, named))
    return tree_map(lambda made: made.to(device), found)


def _in_turn(plain: Callable[..., Any], keys: Any, /, *values: Any, **named: Any) -> Any:
    """Fractions are all alike, so that each is as good: all experts get as many tokens."""
    given = plain(keys, *values, **named)
    scores, indices = values[0], given[1]
    dim = values[2] if len(values) > 2 else named.get("dim", -1)
    if scores.dim() and scores.is_floating_point() and _are_small(indices):
        places = _on_host(indices).movedim(dim, -1)
        turns = torch.arange(places.numel()) % scores.shape[dim]
        places.copy_(turns.view(places.shape))
    return given


def _is_of_device(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_cuda


def _is_whole(one: Any) -> bool:
    return _is_of_device(one) and not (one.is_floating_point() or one.is_complex())


def _are_small(tree: Any) -> bool:
    return all(
        one.numel() <= MOST_ELEMENTS for one in tree_leaves(tree) if isinstance(one, torch.Tensor)
    )


def _on_host(one: Any) -> Any:
    """A tensor of the device as one of the host, in the same memory; fractions as zeros."""
    if not _is_of_device(one):
        return one
    if not _is_whole(one):
        return torch.zeros((), dtype=one.dtype).expand(one.shape)
    if one.numel() == 0:
        return torch.empty(one.shape, dtype=one.dtype)
    steps = sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
    memory = (ctypes.c_char * ((steps + 1) * one.element_size())).from_address(one.data_ptr())
    flat = torch.frombuffer(memory, dtype=one.dtype)
    return flat.as_strided(one.shape, one.stride())
