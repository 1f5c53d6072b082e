"""The kinds of work that are timed, from matrix products to collectives beside them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workers.probe.group import gather_into, reduce_scatter_into
from workers.probe.model import build_on_meta, move_buffers
from workers.probe.optimizers import make_optimizer

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WEIGHTS_STD = 0.02
"""As of weights in training: a matrix product of zeros would draw less power, and run faster."""

Work = Callable[[], object]
Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where cases run."""

    device: torch.device
    """This rank's."""
    groups: Mapping[str, dist.ProcessGroup]
    """Ranks to communicate with, ``intra`` and ``inter`` node, as far as there are any."""


def work_of(case: Case, place: Place) -> Work:
    """What one call of a case does; making it is not timed.

    Args:
        case: its ``kind``, ``dtype``, and sizes.
        place: where.
    """
    kinds: Mapping[str, Callable[[Case, Place], Work]] = {
        "matrix": _matrix,
        "copy": _copy,
        "layers": _layers,
        "update": _update,
        "collective": _collective,
        "both": _both,
    }
    return kinds[case["kind"]](case, place)


def _numbers(case: Case, place: Place, *shape: int) -> torch.Tensor:
    numbers = torch.empty(shape, dtype=DTYPES[case["dtype"]], device=place.device)
    return numbers.normal_(0, WEIGHTS_STD)


def _matrix(case: Case, place: Place) -> Work:
    """``rows`` tokens through a square weight of ``width`` channels, as in ``nn.Linear``."""
    rows, width = case["rows"], case["width"]
    tokens, weight = _numbers(case, place, rows, width), _numbers(case, place, width, width)
    out = torch.empty_like(tokens)
    return lambda: torch.mm(tokens, weight.t(), out=out)


def _copy(case: Case, place: Place) -> Work:
    """``elements`` are read and written."""
    source = _numbers(case, place, case["elements"])
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _layers(case: Case, place: Place) -> Work:
    """Forward with the loss, and backward, of a small model of transformers."""
    model = _model(case, place)
    shape = (case["micro_batch_size"], case["sequence_length"])
    vocabulary = int(case["model"]["vocab_size"])
    batch = torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))
    batch = batch.to(place.device)

    def step() -> None:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def _model(case: Case, place: Place) -> nn.Module:
    model: nn.Module = build_on_meta(case["model"], DTYPES[case["dtype"]])
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.empty_like(parameter, device=place.device)
            values.fill_(1.0) if values.ndim == 1 else values.normal_(0, WEIGHTS_STD)
            module.register_parameter(name, nn.Parameter(values))
    move_buffers(model, place.device)
    return model


def _update(case: Case, place: Place) -> Work:
    """AdamW's step on ``tensors`` parameters of ``elements`` together."""
    count = case["tensors"]
    each = case["elements"] // count
    model = nn.ParameterList([nn.Parameter(_numbers(case, place, each)) for _ in range(count)])
    for parameter in model:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return make_optimizer("adamw", model).step


def _collective(case: Case, place: Place) -> Work:
    """One collective of ``elements`` in the whole tensor: zeros, which no sum makes overflow."""
    group, dtype = place.groups[case["axis"]], DTYPES[case["dtype"]]
    whole = torch.zeros(case["elements"], dtype=dtype, device=place.device)
    part = torch.zeros(case["elements"] // group.size(), dtype=dtype, device=place.device)
    works: Mapping[str, Work] = {
        "all_gather": lambda: gather_into(whole, part, group=group),
        "reduce_scatter": lambda: reduce_scatter_into(part, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
    }
    return works[case["op"]]


def _both(case: Case, place: Place) -> Work:
    """Matrices while an all-reduce is under way; and each of the two by itself.

    ``part`` is ``matrix``, ``collective`` or ``both``.
    """
    times, part = case["products"], case["part"]
    multiply = _matrix(case, place)
    group = place.groups[case["axis"]]
    whole = torch.zeros(case["elements"], dtype=DTYPES[case["dtype"]], device=place.device)

    def work() -> None:
        sent = dist.all_reduce(whole, group=group, async_op=True) if part != "matrix" else None
        for _ in range(times if part != "collective" else 0):
            multiply()
        if sent is not None:
            sent.wait()

    return work


def no_gradient(case: Case) -> AbstractContextManager[object]:
    """What a case runs under: all but layers without a graph."""
    return torch.enable_grad() if case["kind"] == "layers" else torch.no_grad()
