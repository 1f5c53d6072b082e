"""Bytes that optimizers keep, take for a time and move: one row for each.

Of those that look at shapes (Adafactor, Muon) nothing is sharded or split, so all figures are of
whole parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from tuner.core.adapter import Adapter
from tuner.core.cluster import Cluster, Device
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.memory.shards import WEIGHT_BYTES
from tuner.cost.memory.tensors import Tensor, model_tensors
from tuner.model import ModelConfig


class Updated(NamedTuple):
    """A trained parameter as an optimizer sees it."""

    elements: int
    factors: int  # means over its last dimension, and over the one before it; 0 of a vector
    short: int  # the smaller dimension of a matrix in a layer; 0 of all else


class Rank(NamedTuple):
    width: int  # bytes of an element of a parameter
    own: float  # elements
    largest: float  # elements of the largest parameter
    each: Callable[[], tuple[Updated, ...]]  # all parameters, whole, in order
    on_cuda: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """An optimizer's figures, all in bytes."""

    state: Callable[[Updated, int, bool], float]
    """Kept of a parameter, from its elements' width and whether CUDA's allocator keeps it."""
    takes: Callable[[Rank], float] = lambda _: 0.0  # at once for a time, in the step
    moves: Callable[[int], float]  # read and written per parameter, from its width


@lru_cache(maxsize=64)
def updated(model: ModelConfig, adapter: Adapter | None) -> tuple[Updated, ...]:
    """Lists the trained parameters, in the order of ``model.parameters()``."""
    tensors = model_tensors(model, adapter)
    places = [
        *((tensor, False) for tensor in (*tensors.embedding, *tensors.positions)),
        *((tensor, True) for layer in tensors.layers for tensor in layer),
        *((tensor, False) for tensor in (*tensors.norm, *tensors.head)),
    ]

    def seen(tensor: Tensor, *, in_layer: bool) -> Updated:
        if tensor.last:  # experts, packed in three dimensions
            factors = tensor.elements // tensor.last + tensor.rows * tensor.last
            return Updated(tensor.elements, factors, 0)
        if tensor.columns == 1 and adapter is None:
            return Updated(tensor.elements, 0, 0)
        short = min(tensor.rows, tensor.columns) if in_layer else 0
        return Updated(tensor.elements, tensor.rows + tensor.columns, short)

    return tuple(seen(one, in_layer=place) for one, place in places if one.trained)


# torchao's 8-bit AdamW: two moments of a byte, and an fp32 scale for each block of 256.
STATE_BYTES_8BIT = 2 * (1 + 4 / 256)

# Of its step on CUDA, per element of the parameter that is updated: both moments in fp32, and new
# scales (``single_param_adam`` in torchao/optim/adam.py, as inductor compiles it).
STEP_BYTES_8BIT = 2 * (4 + 4 / 256)

# bitsandbytes' (``Optimizer2State.init_state`` in optim/optimizer.py, 0.50.2): from so many
# elements on two moments of a byte, and an fp32 maximum for each block of 256; fp32 below.
_BLOCKWISE_FROM, _BLOCK = 4096, 256
# Moments of so many elements are in unified memory, where they are paged (``get_state_buffer``).
_PAGED_FROM = 100_000


def _blockwise(one: Updated, _: int, __: bool) -> float:
    if one.elements < _BLOCKWISE_FROM:
        return 8 * one.elements
    return 2 * one.elements + 8 * ceil(one.elements / _BLOCK)


def _paged(one: Updated, width: int, on_cuda: bool) -> float:
    # Pages go to the host when device memory runs out, of what is used in the step above all
    # (docs/source/explanations/optimizers.mdx of bitsandbytes), and torch's allocator does not
    # know them: they are counted as if they had gone.
    in_unified = on_cuda and one.elements >= _PAGED_FROM
    return _blockwise(one, width, on_cuda) - 2 * one.elements * in_unified


def _adafactor_takes(rank: Rank) -> float:
    """Of the step (``Adafactor.step`` in transformers/optimization.py, 5.23), in fp32: squares, and
    these with epsilon; gradient and weight, where they are in bf16; and the update before."""
    copies = 8 + (8 if rank.width < 4 else 0)
    each = [one.elements for one in rank.each()]
    before = (4 * last + copies * size for last, size in pairwise([0, *each]))
    return max(before)


def _muon_takes(rank: Rank) -> float:
    """Of the step (``_zeropower_via_newtonschulz`` in torch/optim/_muon.py, 2.13): the update in
    the gradient's format, in bf16 the orthogonal matrix before and after, and two products of it
    with itself; then AdamW's copy of the rest."""
    each = rank.each()
    orthogonal = ((rank.width + 4) * one.elements + 4 * one.short**2 for one in each if one.short)
    rest = [one.elements for one in each if not one.short]
    copies = sum(rest) if rank.on_cuda else 2 * max(rest, default=0)
    return max(rank.width * copies, max(orthogonal, default=0))


# AdamW of torch is ``foreach`` (``_multi_tensor_adam`` in torch/optim/adam.py): decay 2, first
# moment 3, second 2 + 3, root 2, division 2, epsilon 2, update 4; it copies what it updates, all of
# it on CUDA, elsewhere twice the largest part. The fused one is one kernel: it reads the gradient,
# reads and writes the weight and two moments. So are torchao's 8-bit AdamW, with moments of a byte,
# bitsandbytes' on CUDA (csrc/kernels.cu), and SGD; on CPUs no probe sees what the first two make.
# Adafactor's fp32 numbers: norm 1, square 2, epsilon 2, means 2, product of factors 1, times
# gradient 3, norm 1, scale 2 + 2, sign 2, addition 3; and casts there and back of bf16. Muon's are
# those of its matrices: momentum 3, Nesterov's 3, cast 1, decay 2, addition 2; in bf16 cast, norm,
# division and addition, and five times what three products read and write beside their squares.
FOOTPRINTS: Mapping[Optimizer, Footprint] = {
    Optimizer.ADAMW: Footprint(
        state=lambda one, width, _: 2 * width * one.elements,
        takes=lambda rank: rank.width * (rank.own if rank.on_cuda else 2 * rank.largest),
        moves=lambda width: 20 * width,
    ),
    Optimizer.ADAMW_FUSED: Footprint(
        state=lambda one, width, _: 2 * width * one.elements, moves=lambda width: 7 * width
    ),
    Optimizer.ADAMW_8BIT: Footprint(
        state=lambda one, _, __: STATE_BYTES_8BIT * one.elements,
        takes=lambda rank: STEP_BYTES_8BIT * rank.largest if rank.on_cuda else 0.0,
        moves=lambda width: 3 * width + 4,
    ),
    Optimizer.SGD: Footprint(state=lambda *_: 0.0, moves=lambda width: 3 * width),
    Optimizer.ADAMW_BNB_8BIT: Footprint(state=_blockwise, moves=lambda width: 3 * width + 4),
    Optimizer.PAGED_ADAMW_8BIT: Footprint(state=_paged, moves=lambda width: 3 * width + 4),
    Optimizer.LION: Footprint(
        state=lambda one, _, __: 4 * one.elements, moves=lambda width: 3 * width + 8
    ),
    Optimizer.ADAFACTOR: Footprint(
        state=lambda one, _, __: 4 * (one.factors or one.elements),
        takes=_adafactor_takes,
        moves=lambda width: 21 * 4 + (18 if width < 4 else 0),
    ),
    Optimizer.MUON: Footprint(
        state=lambda one, width, _: (1 if one.short else 2) * width * one.elements,
        takes=_muon_takes,
        moves=lambda width: 11 * width + 10 + 5 * 8,
    ),
}


@lru_cache(maxsize=1024)
def state_bytes(workload: Workload, cluster: Cluster) -> float:
    """Bytes of optimizer state per trained parameter, on average, in the device's memory."""
    width, on_cuda = WEIGHT_BYTES[workload.precision], cluster.gpu.device is Device.CUDA
    each, of = updated(workload.model, workload.adapter), FOOTPRINTS[workload.optimizer].state
    return sum(of(one, width, on_cuda) for one in each) / sum(one.elements for one in each)


def paged_bytes(workload: Workload, cluster: Cluster) -> float:
    """Bytes of optimizer state that are not counted, for they are in unified memory; 0 of models
    that only dry runs know."""
    paged = workload.optimizer is Optimizer.PAGED_ADAMW_8BIT and not workload.is_traced
    if not paged or cluster.gpu.device is Device.CPU:
        return 0.0
    each = updated(workload.model, workload.adapter)
    return sum(2.0 * one.elements for one in each if one.elements >= _PAGED_FROM)


def step_bytes(workload: Workload, cluster: Cluster, own: float, largest: float) -> float:
    """Bytes that the step takes for a time, of a rank with so many elements; the largest
    parameter's are among them."""
    rank = Rank(
        width=WEIGHT_BYTES[workload.precision],
        own=own,
        largest=largest,
        each=lambda: updated(workload.model, workload.adapter),
        on_cuda=cluster.gpu.device is Device.CUDA,
    )
    return FOOTPRINTS[workload.optimizer].takes(rank)


def update_bytes(optimizer: Optimizer, precision: Precision, parameters: float) -> float:
    """Bytes of the device's memory that an optimizer's step reads and writes."""
    return parameters * FOOTPRINTS[optimizer].moves(WEIGHT_BYTES[precision])


def update_flops(workload: Workload) -> float:
    """FLOPs of matrix products in the optimizer's step: Muon's five iterations, each of a square
    of the shorter side, that times itself, and times the matrix; 0 of models that only dry runs
    know, whose time with Muon is unknown."""
    if workload.optimizer is not Optimizer.MUON or workload.is_traced:
        return 0.0
    each = updated(workload.model, workload.adapter)
    return sum(5.0 * one.short * (4 * one.elements + 2 * one.short**2) for one in each)
