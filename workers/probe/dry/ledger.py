"""A log of every storage's birth and death in a step, and of its purpose."""

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from workers.probe.collectives import group_of, kind_of, tensors_of
from workers.probe.dry.fake import UNKNOWN, FakeMode
from workers.probe.dry.substitutes import STAND_INS
from workers.probe.dry.work import Work
from workers.probe.tracker import (
    UNPACKS,
    Phase,
    Plan,
    StorageTracker,
    fake_mode,
    plain_tensors,
    rounded,
)

_PHASE, _OPERATOR = slice(0, 32), slice(32, 160)


class Progress:
    """The phase and the operator that a dry run is at, in memory that its forks share.

    It is written at each operator, so that also a call that never returns is known by name.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _OPERATOR.stop)

    def enter(self, phase: str) -> None:
        self._shared[:] = _packed(phase, _PHASE) + packed_operator("")

    def run(self, operator: bytes) -> None:
        """An operator is called, its name as from :func:`packed_operator`."""
        self._shared[_OPERATOR] = operator

    @property
    def phase(self) -> str:
        return self._shared[_PHASE].rstrip(b"\0").decode("utf-8", "replace")

    @property
    def operator(self) -> str:
        return self._shared[_OPERATOR].rstrip(b"\0").decode("utf-8", "replace")


def packed_operator(name: str) -> bytes:
    """An operator's name as it is written down: made once, so that writing it is cheap."""
    return _packed(name, _OPERATOR)


def _packed(text: str, place: slice) -> bytes:
    width: int = place.stop - place.start
    return text.encode()[:width].ljust(width, b"\0")


class Category(StrEnum):
    PARAMETERS = "parameters"
    """This rank's parameters and buffers, between steps."""
    GRADIENTS_SHARDED = "gradients_sharded"
    """This rank's part of reduced gradients."""
    GRADIENTS_UNSHARDED = "gradients_unsharded"
    """Whole gradients: of DDP, on their way to a reduction, or waiting for the last micro-batch."""
    OPTIMIZER_STATE = "optimizer_state"
    """The optimizer's tensors between steps."""
    ACTIVATIONS = "activations"
    """Tensors that forward, or forward done again in backward, leaves for backward."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Parameters gathered, or cast, for computing with them, and buffers of the gathering."""
    LOGITS_AND_LOSS = "logits_and_loss"
    """Logits, the loss's copies of them, and their gradients."""
    DDP_BUCKETS = "ddp_buckets"
    """DDP's buffers of gradients, by arithmetic: no tensor here has them."""
    TEMPORARIES = "temporaries"
    """All else: it dies in the phase that made it."""


# The part of forward from the output embedding on.
LOSS = "loss"


class Segment(NamedTuple):
    """A stretch of a step: from one decoder layer's start to the next one's."""

    micro_batch: int  # from 0
    phase: str  # forward, loss, backward or optimizer
    part: str  # the place in the model: before the layers, `layer 0` and so on, or after them


@dataclass(slots=True, eq=False)
class Block:
    """One storage, from its birth to its death."""

    phase: str  # the phase in which it was born
    makes_graph: bool
    """True if gradients were recorded at its birth, as when backward runs forward again."""
    of_vocabulary: bool  # true if its last dimension is the vocabulary's
    category: Category | None = None  # its purpose, if known; otherwise birth and death tell
    death: str = ""  # the phase in which it died


class Change(NamedTuple):
    """A storage was born, grew, shrank or died."""

    block: Block
    by: int  # bytes, negative where memory is freed


# Changes in their order; each segment's changes follow its name.
Log = list[Change | Segment]


class Ledger(StorageTracker):
    """A tracker that knows what storages are for, and logs every change.

    Attributes:
        vocabulary: sizes of the last dimension of logits on this rank.
        data_groups: names of the process groups that parameters are sharded and gradients
            are reduced over.
        log: since ``start_log``.
        work: what the first micro-batch computes, where that is counted.
    """

    def __init__(self, phase: Phase, progress: Progress, *, over_gloo: bool = False) -> None:
        super().__init__(phase, over_gloo=over_gloo)
        self._progress = progress
        self.vocabulary: frozenset[int] = frozenset()
        self.data_groups: frozenset[str] = frozenset()
        self.log: Log = []
        self.work: Work | None = None
        self._blocks: dict[int, Block] = {}
        self._makes = False

    def start_log(self) -> None:
        """Forget all changes; the new log begins with the birth of what is alive."""
        self.reset_peak()
        self.log = [Change(block, self._sizes[key]) for key, block in self._blocks.items()]

    def mark(self, segment: Segment) -> None:
        self.log.append(segment)
        if self.work is not None:
            self.work.enter(segment)

    def assign(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Say what tensors are for; what has been said before stays."""
        # It can become known after their birth (a gradient is one once it is found in ``.grad``),
        # so the log is sorted into categories at the step's end.
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
        self.log.append(Change(held.block, -held.by))

    def add(self, tensor: torch.Tensor) -> None:
        shape = tensor.shape
        self._makes = len(shape) > 1 and shape[-1] in self.vocabulary
        if type(tensor) is FakeTensor and tensor.fake_device.type != "meta":
            self._count(tensor)
        else:
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

    def _run(self, plan: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._progress.run(plan.name)
        mode = self._home_mode
        if plan.is_operator and isinstance(mode, FakeMode) and fake_mode() is mode:
            found = mode.known(plan.run, args, kwargs)
            if found is not UNKNOWN:
                return found
        return plan.run(*args, **kwargs)

    def _plan(self, func: Any) -> "_Plan":
        fsdp, run = func.namespace == "fsdp", STAND_INS.get(func, func)
        plan = self._plans[id(func)] = _Plan(
            collective=kind_of(func),
            unpacks=getattr(func, "_name", "") == UNPACKS,
            name=packed_operator(str(func)),
            run=run,
            is_operator=isinstance(run, OpOverload),
            copies=_FSDP_COPIES.get(func.overloadpacket.__name__) if fsdp else None,
            is_cast=func is torch.ops.aten._to_copy.default,
            buffer_share=_BUFFERS.get(func, 0.0),
        )
        return plan

    def _note(
        self, plan: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        if self.work is not None:
            self.work.count(func, args, kwargs, out)
        if plan.buffer_share and not self._over_gloo:
            self.release(self.hold(int(plan.buffer_share * out.nbytes), Category.TEMPORARIES))
        # a parameter's copy in the precision that is computed in, as autocast makes it
        if plan.is_cast and all(
            block.category == Category.PARAMETERS for block in self._known([args[0]])
        ):
            self.assign([out], Category.GATHERED_PARAMETERS)
        if plan.copies is not None:
            self.assign(tensors_of((args, kwargs, out)), plan.copies)
        whole, part = _ROLES.get(plan.collective or "", (None, None))
        if whole is None or part is None or group_of(args, kwargs) not in self.data_groups:
            return
        result, *given = tensors_of((args, kwargs))  # c10d: the output comes first
        scatters = plan.collective == "reduce_scatter"
        self.assign([result], part if scatters else whole)
        self.assign(given, whole if scatters else part)

    def _copy_for_gloo(self, whole: torch.Tensor) -> None:
        copy = torch.empty_like(whole)
        self.add(copy)
        for of_copy, of_whole in zip(self._known([copy]), self._known([whole]), strict=True):
            of_copy.category = of_whole.category


# FSDP2's own operators, which copy parameters out of and gradients into flat buffers.
_FSDP_COPIES: Mapping[str, Category] = {
    "all_gather_copy_in": Category.GATHERED_PARAMETERS,
    "split_with_sizes_copy": Category.GATHERED_PARAMETERS,
    "chunk_cat": Category.GRADIENTS_UNSHARDED,
}

_DEVICE: Any = torch.ops.prim.device.default


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan(Plan):
    name: bytes  # its name, as progress is told it
    run: Any  # the operator, or its stand-in
    is_operator: bool  # whether that is an operator
    copies: Category | None  # the purpose of tensors that FSDP2 copies with it
    is_cast: bool  # true if its result may be a parameter in another precision
    buffer_share: float
    """Bytes that CUDA's kernel takes until it returns, for each byte of its result."""


# Operators with such a buffer, of scores above all; a dry run sees what operators return.
_BUFFERS: Mapping[Any, float] = {
    # the product of gradient and result (softmax_backward_cuda_out in SoftMax.cu)
    torch.ops.aten._softmax_backward_data.default: 1.0,
    # which of its fp32 inputs are masked (_safe_softmax in transformers/attention.cpp)
    torch.ops.aten._safe_softmax.default: 0.25,
}


# The purpose of the whole and of the part of a collective over data-parallel ranks.
_ROLES: Mapping[str, tuple[Category, Category]] = {
    "all_gather": (Category.GATHERED_PARAMETERS, Category.GATHERED_PARAMETERS),
    "reduce_scatter": (Category.GRADIENTS_UNSHARDED, Category.GRADIENTS_SHARDED),
}


def category_of(block: Block) -> Category:
    """The purpose of a storage, known at its step's end."""
    if block.category is not None:
        return block.category
    if block.phase == LOSS or (block.of_vocabulary and block.phase != "optimizer"):
        return Category.LOGITS_AND_LOSS
    if block.phase == "forward":
        stays = block.death not in ("forward", LOSS)
        return Category.ACTIVATIONS if stays else Category.TEMPORARIES
    again = block.phase == "backward" and block.makes_graph
    return Category.ACTIVATIONS if again else Category.TEMPORARIES
