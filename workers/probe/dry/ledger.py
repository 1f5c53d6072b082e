"""A log of every storage's birth and death in a step, and what each storage is for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from workers.probe import collectives
from workers.probe.dry.progress import Progress, packed_operator
from workers.probe.dry.stand_ins import STAND_INS
from workers.probe.tracker import Phase, StorageTracker, plain_tensors, rounded


class Category(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    """This rank's parameters and buffers, between steps."""
    GRADIENTS_SHARDED = "gradients_sharded"
    """This rank's part of reduced gradients."""
    GRADIENTS_UNSHARDED = "gradients_unsharded"
    """Whole gradients: of DDP, on their way to a reduction, or waiting for the last micro-batch."""
    OPTIMIZER_STATE = "optimizer_state"
    """What the optimizer keeps between steps."""
    ACTIVATIONS = "activations"
    """What forward, or forward done again in backward, leaves for backward."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Parameters gathered, or cast, for computing with them, and buffers of the gathering."""
    LOGITS_AND_LOSS = "logits_and_loss"
    """Logits, the loss's copies of them, and their gradients."""
    DDP_BUCKETS = "ddp_buckets"
    """DDP's buffers of gradients, by arithmetic: no tensor here has them."""
    TEMPORARIES = "temporaries"
    """All else: it dies in the phase that made it."""


LOSS = "loss"
"""The part of forward from the output embedding on."""


class Segment(NamedTuple):
    """A stretch of a step: from one decoder layer's start to the next one's."""

    micro_batch: int
    """From 0."""
    phase: str
    """forward, loss, backward or optimizer."""
    part: str
    """Where in the model: before the layers, ``layer 0`` and so on, or after them."""


@dataclass(slots=True, eq=False)
class Block:
    """One storage, from its birth to its death."""

    phase: str
    """In which it was born."""
    makes_graph: bool
    """Whether gradients were recorded at its birth: true when backward runs forward again."""
    of_vocabulary: bool
    """Whether its last dimension is the vocabulary's."""
    category: Category | None = None
    """Where it is known; otherwise birth and death tell."""
    death: str = ""
    """The phase in which it died."""


class Change(NamedTuple):
    """A storage was born, grew, shrank or died."""

    block: Block
    by: int
    """Bytes, negative where memory is freed."""


Log = list[Change | Segment]
"""Changes in their order; each segment's changes follow its name."""


class Ledger(StorageTracker):
    """A tracker that knows what storages are for, and logs every change.

    What a storage was for can become known after its birth (a gradient is one once it is
    found in ``.grad``), so the log is sorted into categories at the step's end.

    Args:
        phase: what the step is doing.
        progress: told each operator.
        over_gloo: whether collectives would be gloo's, as of ``StorageTracker``.

    Attributes:
        vocabulary: sizes of the last dimension of logits on this rank.
        data_groups: names of the process groups that parameters are sharded and gradients
            are reduced over.
        log: since ``start_log``.
    """

    def __init__(self, phase: Phase, progress: Progress, *, over_gloo: bool = False) -> None:
        super().__init__(phase, over_gloo=over_gloo)
        self._progress = progress
        self.vocabulary: frozenset[int] = frozenset()
        self.data_groups: frozenset[str] = frozenset()
        self.log: Log = []
        self._plans: dict[int, _Plan] = {}
        self._blocks: dict[int, Block] = {}
        self._makes = False

    def start_log(self) -> None:
        """Forget all changes; the new log begins with the birth of what is alive."""
        self.reset_peak()
        self.log = [Change(block, self._sizes[key]) for key, block in self._blocks.items()]

    def mark(self, segment: Segment) -> None:
        """What follows belongs to ``segment``."""
        self.log.append(segment)

    def assign(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Say what tensors are for; what has been said before stands."""
        for block in self._known(tensors):
            if block.category is None:
                block.category = category

    def drop(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors no more: they are in another device's memory."""
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                self._free(plain.untyped_storage()._cdata)

    def hold(self, size: int, category: Category) -> Change:
        """Count bytes that no tensor here has, until they are released."""
        block = Block(self._phase.name, makes_graph=False, of_vocabulary=False, category=category)
        held = Change(block, rounded(size))
        self.log.append(held)
        return held

    def release(self, held: Change) -> None:
        """Count no more what was held."""
        self.log.append(Change(held.block, -held.by))

    def add(self, tensor: torch.Tensor) -> None:
        self._makes = tensor.dim() > 1 and tensor.shape[-1] in self.vocabulary
        super().add(tensor)

    def _known(self, tensors: Iterable[torch.Tensor]) -> Iterable[Block]:
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                block = self._blocks.get(plain.untyped_storage()._cdata)
                if block is not None:
                    yield block

    def _grow(self, key: int, by: int) -> None:
        block = self._blocks.get(key)
        if block is None:
            block = Block(self._phase.name, torch.is_grad_enabled(), self._makes)
            self._blocks[key] = block
        if by:
            self.log.append(Change(block, by))
        self._sizes[key] = self._sizes.get(key, 0) + by
        self.current_bytes += by
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        size = self._sizes.get(key, 0)
        if block is not None:
            block.death = self._phase.name
            if size:
                self.log.append(Change(block, -size))
        super()._free(key)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # a fake tensor's device is asked for by more than half of all calls
            return args[0].fake_device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        plan = self._plan(func)
        self._progress.run(plan.name)
        return plan.run(*args, **kwargs)

    def _kind(self, func: Any) -> str | None:
        return self._plan(func).collective

    def _plan(self, func: Any) -> "_Plan":
        """What is known of an operator; operators live as long as the process."""
        plan = self._plans.get(id(func))
        if plan is None:
            plan = self._plans[id(func)] = _plan_of(func)
        return plan

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        plan = self._plan(func)
        if plan.buffer_share and not self._over_gloo:
            self.release(self.hold(int(plan.buffer_share * out.nbytes), Category.TEMPORARIES))
        if plan.is_cast:
            self._note_cast(args[0], out)
        if plan.copies is not None:
            self.assign(_tensors((args, kwargs, out)), plan.copies)
        kind = plan.collective
        if kind is None:
            return
        if collectives.group_of(args, kwargs) in self.data_groups:
            self._note_data_parallel(kind, _tensors((args, kwargs)))

    def _note_data_parallel(self, kind: str, tensors: list[torch.Tensor]) -> None:
        whole, part = _ROLES.get(kind, (None, None))
        if whole is not None and part is not None:
            result, *given = tensors  # c10d: the output comes first
            self.assign([result], part if kind == "reduce_scatter" else whole)
            self.assign(given, whole if kind == "reduce_scatter" else part)

    def _copy_for_gloo(self, whole: torch.Tensor) -> None:
        copy = torch.empty_like(whole)
        self.add(copy)
        for of_copy, of_whole in zip(self._known([copy]), self._known([whole]), strict=True):
            of_copy.category = of_whole.category

    def _note_cast(self, source: torch.Tensor, cast: torch.Tensor) -> None:
        """A parameter's copy in the precision that is computed in, as autocast makes it."""
        if all(block.category == Category.PARAMETERS for block in self._known([source])):
            self.assign([cast], Category.GATHERED_PARAMETERS)


_FSDP_COPIES: Mapping[str, Category] = {
    "all_gather_copy_in": Category.GATHERED_PARAMETERS,
    "split_with_sizes_copy": Category.GATHERED_PARAMETERS,
    "chunk_cat": Category.GRADIENTS_UNSHARDED,
}
"""FSDP2's own operators, which copy parameters out of and gradients into flat buffers."""

_DEVICE: Any = torch.ops.prim.device.default


class _Plan(NamedTuple):
    """What the ledger does with an operator."""

    name: bytes
    """Its name, as progress is told it."""
    run: Any
    """The operator, or its stand-in."""
    collective: str | None
    """Which one it is."""
    copies: Category | None
    """What FSDP2 copies with it."""
    is_cast: bool
    """Whether its result may be a parameter in another precision."""
    buffer_share: float
    """Bytes that CUDA's kernel takes until it returns, for each byte of its result."""


def _plan_of(func: Any) -> _Plan:
    fsdp = func.namespace == "fsdp"
    return _Plan(
        name=packed_operator(str(func)),
        run=STAND_INS.get(func, func),
        collective=collectives.kind_of(func),
        copies=_FSDP_COPIES.get(func.overloadpacket.__name__) if fsdp else None,
        is_cast=func is torch.ops.aten._to_copy.default,
        buffer_share=_BUFFERS.get(func, 0.0),
    )


_BUFFERS: Mapping[Any, float] = {
    # the product of gradient and result (softmax_backward_cuda_out in SoftMax.cu)
    torch.ops.aten._softmax_backward_data.default: 1.0,
    # which of its fp32 inputs are masked (_safe_softmax in transformers/attention.cpp)
    torch.ops.aten._safe_softmax.default: 0.25,
}
"""Operators with such a buffer, of scores above all; a dry run sees what operators return."""


_ROLES: Mapping[str, tuple[Category, Category]] = {
    "all_gather": (Category.GATHERED_PARAMETERS, Category.GATHERED_PARAMETERS),
    "reduce_scatter": (Category.GRADIENTS_UNSHARDED, Category.GRADIENTS_SHARDED),
}
"""What the whole and the part of a collective over data-parallel ranks are."""


def category_of(block: Block) -> Category:
    """What a storage was for, known at its step's end."""
    if block.category is not None:
        return block.category
    if block.phase == LOSS or (block.of_vocabulary and block.phase != "optimizer"):
        return Category.LOGITS_AND_LOSS
    if block.phase == "forward":
        stays = block.death not in ("forward", LOSS)
        return Category.ACTIVATIONS if stays else Category.TEMPORARIES
    again = block.phase == "backward" and block.makes_graph
    return Category.ACTIVATIONS if again else Category.TEMPORARIES


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
