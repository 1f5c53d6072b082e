"""CUDA's kernels of dropout in dry runs."""

import pytest
import torch
from torch.nn import functional

from workers.probe.dry.substitutes import substituted

SHAPE = (1, 2, 8, 16)


def kept(kind, p, *, attends=False, backend="flash"):
    """Shapes and dtypes of what a kernel keeps for backward."""
    found = []
    x = torch.ones(SHAPE, dtype=torch.bfloat16, requires_grad=True)

    def pack(tensor):
        found.append(tensor)
        return tensor

    with (
        substituted(kind, {"unmasked": backend}),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
    ):
        if attends:
            functional.scaled_dot_product_attention(x, x, x, dropout_p=p, is_causal=True)
        else:
            functional.dropout(x, p)
    return [(tuple(t.shape), t.dtype) for t in found]


def test_cudas_dropout_keeps_a_mask_of_bytes():
    assert kept("cuda", 0.1) == [(SHAPE, torch.bool)]
    assert (SHAPE, torch.bfloat16) in kept("cpu", 0.1)


def test_cudas_attention_keeps_no_scores_under_dropout():
    scores = (*SHAPE[:2], SHAPE[2], SHAPE[2])
    assert sorted(map(str, kept("cuda", 0.1, attends=True))) == sorted(
        map(str, kept("cpu", 0.0, attends=True))
    )
    assert not any(shape[-2:] == scores[-2:] for shape, _ in kept("cuda", 0.1, attends=True))
    assert any(shape[-2:] == scores[-2:] for shape, _ in kept("cpu", 0.1, attends=True))


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_torchs_own_operators_keep_probabilities_in_fp32(p):
    """And with dropout a mask of bytes, and what it leaves of them."""
    heads = SHAPE[0] * SHAPE[1]
    scores = [
        (dtype, tuple(shape))
        for shape, dtype in kept("cuda", p, attends=True, backend="math")
        if shape[-2:] == (SHAPE[2], SHAPE[2])
    ]
    whole, folded = (*SHAPE[:3], SHAPE[2]), (heads, SHAPE[2], SHAPE[2])
    mask = [(torch.bool, whole)] if p else []
    expected = [(torch.float32, whole), (torch.float32, folded), *mask]
    assert sorted(map(str, scores)) == sorted(map(str, expected))
    assert not any(shape == whole for shape, _ in kept("cpu", 0.0, attends=True, backend="math"))
