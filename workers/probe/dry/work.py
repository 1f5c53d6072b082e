"""What a micro-batch computes: FLOPs, bytes and kernels of its operators, by phase and part."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

from workers.probe.collectives import tensors_of

if TYPE_CHECKING:
    from workers.probe.dry.ledger import Segment

_ATEN: Any = torch.ops.aten
_SHAPES: Mapping[Any, Any] = flop_registry
_FUSED_ON_CPU = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward,
}
_PLAIN_PRODUCTS = {_ATEN.mm, _ATEN.addmm}
_GROUPED = ("_grouped_mm", "grouped_mm_fallback")
# Tokens that a matrix kernel computes at once, as the cost model has it (CUTLASS's usual tile).
TILE_ROWS = 128
# What a row or a column of a matrix is a multiple of where tensor cores read it at their full rate
# (NVIDIA's Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores").
_ALIGNED_BYTES = 16
# Operators of FSDP2 and of collectives are no computing: they are priced as communication.
_ELSEWHERE = frozenset({"c10d", "_c10d_functional", "fsdp", "prim"})
# Operators that read no more of their tensors than they write, and those that read next to nothing.
_GATHERERS = frozenset({"embedding", "gather", "index", "index_select", "nll_loss_forward"})
_MAKERS = frozenset({"nll_loss_backward", "embedding_dense_backward", "zeros_like", "ones_like"})
# What is counted, each with its unit in its name or in its comment.
AMOUNTS = (
    "product_flops",  # of products with weights, and of batches of products
    "unaligned_flops",  # of those, whose weights are not aligned
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
        if func.namespace in _ELSEWHERE:
            return
        for name, amount in amounts_of(
            func, args, kwargs, out, tokens=self._tokens, sequence=self._sequence
        ).items():
            self._here[name] += amount


def amounts_of(
    func: Any, args: Any, kwargs: Mapping[str, Any], out: Any, *, tokens: int, sequence: int
) -> dict[str, float]:
    """What one operator does; nothing where it launches no kernel.

    A micro-batch has so many ``tokens``, in rows of ``sequence``: by them a product's weights are
    told from its other sides. Where they are not known, they are 0 and 1.
    """
    given, made = tensors_of((args, kwargs)), tensors_of(out)
    if not _launches(func, given, made):
        return {}
    packet, name = func.overloadpacket, func.overloadpacket.__name__
    found: dict[str, float] = {"kernels": 1}
    if _is_fused_attention(packet):
        found |= _attention(func, args, kwargs, out)
    elif packet in _PLAIN_PRODUCTS:
        first, second = (tensor.shape for tensor in tensors_of(args)[-2:])
        flops = _SHAPES[packet](*args, **kwargs, out_val=out)
        sides = sorted((first[0], first[1], second[1]))
        found |= _product(flops, sides, made[0].itemsize, tokens, sequence)
    elif name in _GROUPED:
        found |= _grouped(given, made[0])
    else:
        if packet in _SHAPES:
            found["product_flops"] = _SHAPES[packet](*args, **kwargs, out_val=out)
        # operators on lists of tensors give none back
        wrote = sum(map(_bytes, made or _mutated(func, args, kwargs)))
        moved = wrote
        if name not in _MAKERS:
            read = sum(map(_bytes, given))
            moved += min(read, wrote) if name in _GATHERERS else read
        found["moved_bytes"] = moved
    return found


def _is_fused_attention(packet: Any) -> bool:
    """True of torch's own, and of FlashAttention's for documents (``checkpointing.py``)."""
    if packet in _FUSED_ON_CPU or "flash_attn" in packet.__name__:
        return True
    return packet in _SHAPES and "attention" in packet.__name__


def _product(
    flops: float, sides: Sequence[int], width: int, tokens: int, sequence: int
) -> dict[str, float]:
    """A product of three dimensions, ascending, one of which is tokens: the others are the
    weight's."""
    whole = [n for n in sides if n == tokens] or [n for n in sides if n % sequence == 0]
    if not whole:
        return {"product_flops": flops}
    rest = list(sides)
    rest.remove(whole[-1])
    aligned = all(side * width % _ALIGNED_BYTES == 0 for side in rest)
    return {
        "product_flops": flops,
        "product_sides": 2 * whole[-1] * sum(rest),
        "weight_bytes": rest[0] * rest[1] * width,
        **({} if aligned or width > 2 else {"unaligned_flops": flops}),
    }


def _grouped(given: Sequence[torch.Tensor], out: torch.Tensor) -> dict[str, float]:
    """Products of experts, each of which computes half a tile in vain."""
    first, second = given[0].shape, given[1].shape
    weight = next((one.shape for one in (*given[:2], out) if one.dim() == 3), second)
    rows = next((one.shape for one in given[:2] if one.dim() == 2), first)
    experts, (k, n) = weight[0], weight[-2:]
    # of two flat sides tokens are what they have in common
    tokens = rows[1] if len(first) == len(second) == 2 and rows[1] == second[0] else rows[0]
    return {
        "product_flops": 2 * (tokens + TILE_ROWS / 2 * experts) * k * n,
        "product_sides": 2 * tokens * (k + n),
        "weight_bytes": experts * k * n * out.itemsize,
    }


def _attention(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> dict[str, float]:
    name = func.overloadpacket.__name__
    backward = "backward" in name
    names = [argument.name for argument in func._schema.arguments]
    of = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = (of[which].shape for which in ("query", "key", "value"))
    heads_behind_tokens = name.startswith(("_flash_attention", "_efficient_attention"))
    flops: float
    if heads_behind_tokens:
        # each key counts for all of its queries, which formulas know of since torch 2.13 only; they
        # take shapes for tensors
        whole = {
            id(of[which]): torch.Size((*shape[:-2], query[-2], shape[-1]))
            for which, shape in (("key", key), ("value", value))
        }
        asked = [whole.get(id(one), one) for one in args]
        named = {key: whole.get(id(one), one) for key, one in kwargs.items()}
        flops = _SHAPES[func.overloadpacket](*asked, **named, out_val=out)
    else:
        pairs = 2 * query[:-1].numel() * key[-2]
        wide, made = query[-1], value[-1]
        flops = pairs * (3 * wide + 2 * made if backward else wide + made)
    if of.get("is_causal"):  # half of the keys, and half a tile
        keys = key[-2]
        if heads_behind_tokens:
            keys = of.get("max_k") or of.get("max_seqlen_k") or key[-3]
        flops *= (keys + TILE_ROWS) / 2 / keys
    which = "attention_backward" if backward else "attention"
    return {f"{which}_flops": flops, f"{which}_scores": flops / query[-1]}


def _mutated(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    wanted = [one.alias_info is not None and one.alias_info.is_write
              for one in func._schema.arguments]  # fmt: skip
    named = [one.name for one, writes in zip(func._schema.arguments, wanted, strict=True) if writes]
    placed = [value for value, writes in zip(args, wanted, strict=False) if writes]
    return tensors_of((placed, [kwargs[name] for name in named if name in kwargs]))


def _launches(func: Any, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """Tells whether an operator computes: views and empty tensors launch nothing."""
    if torch.Tag.inplace_view in func.tags or func.overloadpacket is _ATEN.record_stream:
        return False
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
