"""Substitutes for code that asks fake CPU tensors for what they do not have."""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes
from transformers import masking_utils

from workers.probe import checkpointing

# Turns off what transformers asserts of values (``torch_compilable_check``).
_CHECKS = "TRANSFORMERS_DISABLE_TORCH_CHECK"
_DETECTION = "find_packed_sequence_indices"


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    groups = () if offs is None else (offs.numel(),)
    shapes: Mapping[tuple[int, int], tuple[int, ...]] = {
        (2, 2): (*groups, a.shape[0], b.shape[-1]),
        (2, 3): (a.shape[0], b.shape[-1]),
        (3, 2): (a.shape[1 % a.dim()], b.shape[-1]),
        (3, 3): (a.shape[0], a.shape[1], b.shape[-1]),
    }
    return a.new_empty(shapes[a.dim(), b.dim()], dtype=out_dtype)


# Operators whose fake kernels do not do what the real ones do, and their stand-ins.
STAND_INS: Mapping[Any, Any] = {
    # eager waits in place, while the fake kernel returns a new tensor
    torch.ops._c10d_functional.wait_tensor.default: lambda tensor: tensor,
    # below autograd it is a view, of which torch's fake mode keeps results
    torch.ops.aten._unsafe_view.default: torch.ops.aten.view.default,
    # torch's own fake kernel refuses all but bf16
    torch.ops.aten._grouped_mm.default: _grouped_mm,
}


class Fallbacks:
    """Stands for the logger that transformers warns by, once in a process, of each function that
    runs as operators of torch's for want of a package (``use_kernel_func_from_hub_with_fallback``
    in integrations/hub_kernels.py, 5.23)."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._packages: dict[str, str] = {}  # by function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def warning_once(self, message: str, *args: object) -> None:
        if found := re.match("`(.+?)` is falling back .* because `(.+?)` is not ", message):
            self._packages[found[1]] = found[2]
        else:
            self._logger.warning_once(message, *args)

    def notes(self) -> list[str]:
        """What to know of a trace that ran them; nothing where none did."""
        if not self._packages:
            return []
        functions, packages = sorted(self._packages), sorted(set(self._packages.values()))
        return [
            f"{' and '.join(functions)} ran as operators of torch's, for want of"
            f" {' and '.join(packages)}, whose kernels keep other tensors and are fewer and faster"
        ]


@contextlib.contextmanager
def with_numbers(model: Any) -> Iterator[None]:
    """Under this, images' positions and lengths have values, and are not checked against others
    that have none: functions of transformers' vision_utils.py (5.23) make loops of them."""
    inner = getattr(model, "module", model)
    inner = getattr(inner, "get_base_model", lambda: inner)()
    kind = next(one for one in type(inner).__mro__ if one.__module__.startswith("transformers."))
    modeling, checks = sys.modules[kind.__module__], _CHECKS

    def with_values(function: Any) -> Any:
        @functools.wraps(function)
        def made(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return function(*args, **kwargs)

        return made

    before, own = os.environ.get(checks), dict(vars(modeling))
    found = {name: one for name, one in own.items() if name.startswith("get_vision_")}
    os.environ[checks] = "1"
    vars(modeling).update({name: with_values(one) for name, one in found.items()})
    try:
        yield
    finally:
        vars(modeling).update(found)
        os.environ.pop(checks)
        if before is not None:
            os.environ[checks] = before


@contextlib.contextmanager
def substituted(
    kind: str, backends: Mapping[str, str], *, packs: bool = False
) -> Iterator[Fallbacks]:
    """Under this, transformers and torch compute as a real step on a device of ``kind`` does.

    With ``packs`` there are several documents in a row, which transformers is to find.
    """
    hub: Any = sys.modules.get("transformers.integrations.hub_kernels")
    fallbacks = Fallbacks(getattr(hub, "logger", None))
    module: Any = functional
    detection: Any = getattr(masking_utils, _DETECTION, None)
    replaced: list[tuple[Any, str, Any]] = [
        # FSDP and optimizers open profiler ranges all the time: each costs two operators
        (record_function, "__enter__", lambda self: self),
        (record_function, "__exit__", lambda self, *_: None),
    ]
    if detection is not None and not packs:
        # transformers reads positions to find several sequences in one row, and where it cannot
        # read them it builds a causal mask of (sequence, sequence), which a real step does without;
        # the detection's own allocations are a real step's too

        def none_found(position_ids: torch.Tensor) -> None:
            detection(position_ids)

        replaced.append((masking_utils, _DETECTION, none_found))
    if hub is not None:
        replaced.append((hub, "logger", fallbacks))
    layers: Any = sys.modules.get("bitsandbytes.nn.modules")
    if layers is not None:  # it would make a class of its own of a parameter, which is fake here
        replaced.append((layers, "fix_4bit_weight_quant_state_from_module", _give_scales))
    if kind == "cuda":
        asked = torch.is_autocast_enabled  # peft asks about CUDA, where here all is CPU's
        replaced.append((torch, "is_autocast_enabled", lambda *_: asked("cpu")))
        replaced.append((checkpointing, "save_on_cpu", _OnHost))
        attention = cuda_attention(module.scaled_dot_product_attention, backends)
        replaced.append((module, "dropout", cuda_dropout(module.dropout)))
        replaced.append((module, "scaled_dot_product_attention", attention))
    originals = [(where, name, getattr(where, name)) for where, name, _ in replaced]
    for where, name, substitute in replaced:
        setattr(where, name, substitute)
    try:
        yield fallbacks
    finally:
        for where, name, original in originals:
            setattr(where, name, original)


def _give_scales(linear: Any) -> None:
    linear.weight.quant_state = linear.quant_state


class _OnHost(torch.autograd.graph.saved_tensors_hooks):
    """``save_on_cpu`` for fake tensors, which are all on one device: what it keeps is no tensor, so
    that it is not counted, and comes back as a new one."""

    def __init__(self, pin_memory: bool = False) -> None:
        del pin_memory
        super().__init__(
            lambda tensor: (tensor.shape, tensor.dtype, tensor.device),
            lambda kept: torch.empty(kept[0], dtype=kept[1], device=kept[2]),
        )


def cuda_dropout(original: Any) -> Any:
    """Dropout that keeps for backward what CUDA's one kernel keeps, a mask of bytes."""

    # ``is_fused_kernel_acceptable`` in aten/src/ATen/native/Dropout.cpp; a CPU keeps a mask in the
    # tensor's dtype
    def dropout(
        input: torch.Tensor,  # noqa: A002  (its name is part of the function)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if training and not inplace and 0.0 < p < 1.0:
            return torch.native_dropout(input, p, training)[0]
        return original(input, p, training, inplace)

    return dropout


def cuda_attention(fused: Any, backends: Mapping[str, str]) -> Any:
    """Attention that keeps for backward what the kernel keeps that CUDA would take."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if backends.get("unmasked" if attn_mask is None else "masked") != "math":
            # CUDA's flash and efficient attention drop out inside the kernel and keep what they
            # keep without dropout, beside the generator's state, which is two numbers and not
            # counted here. A CPU's fused attention refuses dropout, so scores would be computed one
            # operator after the other, and kept.
            return fused(query, key, value, attn_mask, 0.0, **given)
        if dropout_p > 0.0:
            return _dropped_out(query, key, value, attn_mask, dropout_p, **given)
        # The operators, and their precision, are the same on all devices
        # (``_scaled_dot_product_attention_math`` in
        # aten/src/ATen/native/transformers/attention.cpp).
        with sdpa_kernel(SDPBackend.MATH):
            return fused(query, key, value, attn_mask, 0.0, **given)

    return attention


def _dropped_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    *,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """torch's operators with CUDA's dropout among them: on a CPU torch takes a CPU's."""
    given = query.dtype
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    query, key, value = query.float(), key.float(), value.float()
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scores = torch.matmul(query * factor, key.transpose(-2, -1) * factor)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        nothing = torch.zeros((), dtype=given, device=query.device)
        attn_mask = torch.where(attn_mask, nothing, float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    del scores
    weights = torch.native_dropout(weights, dropout_p, True)[0]
    return torch.matmul(weights, value).to(given)
