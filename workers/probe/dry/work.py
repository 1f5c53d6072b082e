"""What a micro-batch computes: FLOPs, bytes and kernels of its operators, by phase and part."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from workers.probe.checkpointing import VARLEN_FORWARD
from workers.probe.collectives import tensors_of

if TYPE_CHECKING:
    from workers.probe.dry.ledger import Segment

_ATEN: Any = torch.ops.aten
_SHAPES: Mapping[Any, Any] = flop_registry
_FUSED = {_ATEN._scaled_dot_product_flash_attention_for_cpu.default}
_FUSED_BACKWARD = {_ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default}
_PLAIN_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default}
_GROUPED = ("_grouped_mm", "grouped_mm_fallback")
# Tokens that a matrix kernel computes at once, as the cost model has it (CUTLASS's usual tile).
TILE_ROWS = 128
# Operators of FSDP2 and of collectives are no computing: they are priced as communication.
_ELSEWHERE = frozenset({"c10d", "_c10d_functional", "fsdp", "prim"})
# Operators that read no more of their tensors than they write, and those that read next to nothing.
_GATHERERS = frozenset({"embedding", "gather", "index", "index_select", "nll_loss_forward"})
_MAKERS = frozenset({"nll_loss_backward", "embedding_dense_backward", "zeros_like", "ones_like"})
# What is counted, each with its unit in its name or in its comment.
AMOUNTS = (
    "product_flops",  # of products with weights, and of batches of products
    "product_sides",  # 2 x tokens x (k + n) of those with weights of k x n
    "attention_flops",  # of fused attention's forward, without the keys that a causal one skips
    "attention_scores",  # the same over the channels of a head
    "attention_backward_flops",
    "attention_backward_scores",
    "weight_bytes",  # that products read of weights, or write of their gradients
    "moved_bytes",  # that all other kernels read and write
    "kernels",  # that are launched
    "host_bytes",  # of layers' inputs that go to the host
)


# A phase, forward with the loss or backward, and a part, layers or the ends around them.
Place = tuple[str, str]


class Work:
    """Adds up what operators of a step's first micro-batch do.

    Attributes:
        found: amounts by place.
    """

    def __init__(self, sequence_length: int) -> None:
        self._sequence = sequence_length
        self._tokens = 0
        self._here: defaultdict[str, float] = defaultdict(float)
        self.found: dict[Place, defaultdict[str, float]] = {}

    def start(self, tokens: int) -> None:
        """A step begins, of so many tokens in a micro-batch."""
        self._tokens, self._here, self.found = tokens, defaultdict(float), {}

    def enter(self, segment: "Segment") -> None:
        """A part of the model begins to compute: the first micro-batch's is told."""
        self._here = defaultdict(float)
        if segment.micro_batch == 0 and segment.phase != "optimizer":
            phase = "backward" if segment.phase == "backward" else "forward"
            part = "layers" if segment.part.startswith("layer") else "ends"
            self._here = self.found.setdefault((phase, part), self._here)

    def to_host(self, size: float) -> None:
        """Bytes of layers' inputs that forward copied to the host, and backward from there."""
        for phase in ("forward", "backward"):
            self.found[phase, "layers"]["host_bytes"] += size

    def count(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """An operator ran."""
        if func.namespace in _ELSEWHERE:
            return
        given, made = tensors_of((args, kwargs)), tensors_of(out)
        if not _launches(func, given, made):
            return
        here, name = self._here, func.overloadpacket.__name__
        here["kernels"] += 1
        if func in _FUSED or func in _FUSED_BACKWARD or name == VARLEN_FORWARD:
            self._attention(func, args, kwargs)
        elif func in _PLAIN_PRODUCTS:
            first, second = (tensor.shape for tensor in given[-2:])
            flops = _SHAPES[func.overloadpacket](*args, **kwargs, out_val=out)
            self._product(flops, (first[0], first[1], second[1]), 1, made[0].itemsize)
        elif name in _GROUPED:
            self._grouped(given, made[0])
        else:
            if func.overloadpacket in _SHAPES:
                here["product_flops"] += _SHAPES[func.overloadpacket](*args, **kwargs, out_val=out)
            wrote = sum(map(_bytes, made))
            here["moved_bytes"] += wrote
            if name not in _MAKERS:
                read = sum(map(_bytes, given))
                here["moved_bytes"] += min(read, wrote) if name in _GATHERERS else read

    def _product(self, flops: float, sides: Sequence[int], weights: int, width: int) -> None:
        """A product of three dimensions, one of which is tokens: the others are the weight's."""
        rest = sorted(sides)
        whole = [n for n in rest if n == self._tokens] or [
            n for n in rest if n % self._sequence == 0
        ]
        here = self._here
        here["product_flops"] += flops
        if not whole:
            return
        rest.remove(whole[-1])
        here["product_sides"] += 2 * whole[-1] * sum(rest)
        here["weight_bytes"] += weights * rest[0] * rest[1] * width

    def _grouped(self, given: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Products of experts, each of which computes half a tile in vain."""
        first, second = given[0].shape, given[1].shape
        weight = next((one.shape for one in (*given[:2], out) if one.dim() == 3), second)
        rows = next((one.shape for one in given[:2] if one.dim() == 2), first)
        experts, (k, n) = weight[0], weight[-2:]
        # of two flat sides tokens are what they have in common
        tokens = rows[1] if len(first) == len(second) == 2 and rows[1] == second[0] else rows[0]
        here = self._here
        here["product_flops"] += 2 * (tokens + TILE_ROWS / 2 * experts) * k * n
        here["product_sides"] += 2 * tokens * (k + n)
        here["weight_bytes"] += experts * k * n * out.itemsize

    def _attention(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        backward = func in _FUSED_BACKWARD
        names = [argument.name for argument in func._schema.arguments]
        of = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = (of[name].shape for name in ("query", "key", "value"))
        flops: float
        if backward:
            flops = sdpa_backward_flop_count(of["grad_out"].shape, query, key, value)
        else:
            flops = sdpa_flop_count(query, key, value)
        if of.get("is_causal"):  # half of the keys, and half a tile
            flops *= (key[-2] + TILE_ROWS) / 2 / key[-2]
        which = "attention_backward" if backward else "attention"
        self._here[f"{which}_flops"] += flops
        self._here[f"{which}_scores"] += flops / query[-1]


def _launches(func: Any, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """Tells whether an operator computes: views and empty tensors launch nothing."""
    if func._schema.is_mutable:
        return True
    if not made or "empty" in func.overloadpacket.__name__:
        return False
    known = {tensor.untyped_storage()._cdata for tensor in given}
    return any(tensor.untyped_storage()._cdata not in known for tensor in made)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor that are in memory: an expanded one's are fewer than its elements'."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def work_of(at_sizes: Sequence[Mapping[Place, Mapping[str, float]]], model: nn.Module) -> Any:
    """Fields of a trace: amounts of each place at each micro-batch size, and what is trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    own = [p.to_local() if isinstance(p, DTensor) else p for p in trained]
    return {
        "work": [
            {
                "phase": place[0],
                "part": place[1],
                "amounts": {
                    name: [found[place].get(name, 0) for found in at_sizes] for name in AMOUNTS
                },
            }
            for place in at_sizes[0]
        ],
        "trained_elements": sum(p.numel() for p in trained),
        "updated_elements": sum(p.numel() for p in own),
    }
