"""The gradient norm of plain tensors; split ones are in test_tensor_parallel."""

import pytest
import torch
from torch import nn

from workers.probe.gradient_norm import total_gradient_norm


def with_gradient(gradient: torch.Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def test_is_the_norm_of_all_gradients_together() -> None:
    parameters = [with_gradient(torch.tensor([3.0])), with_gradient(torch.full((2, 2), 2.0))]
    norm = total_gradient_norm(parameters)
    assert norm.dtype == torch.float64
    assert norm.shape == ()
    assert norm.item() == pytest.approx(5.0)


def test_skips_parameters_without_gradient() -> None:
    assert total_gradient_norm([nn.Parameter(torch.ones(3))]).item() == 0
    assert total_gradient_norm([]).item() == 0


def test_bf16_gradients_are_not_rounded() -> None:
    gradient = torch.full((10_000,), 1.0, dtype=torch.bfloat16)
    assert total_gradient_norm([with_gradient(gradient)]).item() == pytest.approx(100.0, rel=1e-6)


def test_takes_a_generator() -> None:
    model = nn.Linear(2, 1, bias=False)
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert total_gradient_norm(p for p in model.parameters()).item() == pytest.approx(5.0)
