"""Operators whose fake kernels do not do what the real ones do."""

from collections.abc import Mapping
from typing import Any

import torch


def _wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Eager waits in place, while the fake kernel returns a new tensor."""
    return tensor


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The shape of a grouped product: torch's own fake kernel refuses all but bf16."""
    groups = () if offs is None else (offs.numel(),)
    shapes: Mapping[tuple[int, int], tuple[int, ...]] = {
        (2, 2): (*groups, a.shape[0], b.shape[-1]),
        (2, 3): (a.shape[0], b.shape[-1]),
        (3, 2): (a.shape[1 % a.dim()], b.shape[-1]),
        (3, 3): (a.shape[0], a.shape[1], b.shape[-1]),
    }
    return a.new_empty(shapes[a.dim(), b.dim()], dtype=out_dtype)


STAND_INS: Mapping[Any, Any] = {
    torch.ops._c10d_functional.wait_tensor.default: _wait_tensor,
    torch.ops.aten._grouped_mm.default: _grouped_mm,
}
"""What is run in the place of each."""
