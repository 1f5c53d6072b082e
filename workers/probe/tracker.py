"""Peak memory by tensor storage and every collective of a step, on any device.

A dispatch mode sees each operator of a step: new storages are counted until they die, and
collectives are recorded with the phase they happen in. It slows the step down, so it is on
during warm-up and off while time is taken. Beside it stand the tracked steps' other instruments:
gradients' norm, sums of what is frozen, and layers computed again.
"""

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from workers.probe.checkpointing import VARLEN_FORWARD, products
from workers.probe.collectives import Call, call_of, kind_of, tensors_of
from workers.probe.quantized import scales

# The CUDA caching allocator rounds every request up to this, so the count does too
# (``kMinBlockSize`` in c10/cuda/CUDACachingAllocator.cpp).
BLOCK_BYTES = 512

# The phase of what the probe itself adds to a step; none of it is counted.
INSTRUMENT = "instrument"


_ATEN: Any = torch.ops.aten
# The kernels that torch computes attention with, by an operator that nothing else is made of.
ATTENTION: Mapping[Any, str] = {
    _ATEN._scaled_dot_product_cudnn_attention.default: "cudnn",
    _ATEN._scaled_dot_product_flash_attention.default: "flash",
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default: "flash",
    _ATEN._scaled_dot_product_efficient_attention.default: "efficient",
    _ATEN._safe_softmax.default: "math",
}


# bitsandbytes' product, which makes a whole weight of a packed one for itself
# (``_dequant_linear_fallback`` in backends/cuda/ops.py, and the default's, 0.50.2).
UNPACKS = "bitsandbytes::gemm_4bit"


class MemoryLimitError(RuntimeError):
    """A tracked allocation would pass the limit: CPU's stand-in for CUDA's out of memory."""

    def __init__(self, requested_bytes: int, allocated_bytes: int, limit_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"{requested_bytes} bytes more than {allocated_bytes} pass the limit of {limit_bytes}"
        )


@dataclass(slots=True)
class Phase:
    """The present phase of a step; shared by all who record."""

    name: str = "start"  # start, build, forward, backward, optimizer, instrument, time or finish
    micro_batch: int = 0
    """Number of the micro-batch in the optimizer step, from 1; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a tracker does about an operator: worked out once for each."""

    collective: str | None  # the collective that it is
    unpacks: bool  # whether it is bitsandbytes' product


class _Storage(weakref.ref[torch.UntypedStorage]):
    """A storage that lives, by its address; ``weakref.finalize`` does the same, five times as
    slowly."""

    __slots__ = ("key",)
    key: int


class StorageTracker(TorchDispatchMode):
    """Counts bytes of live tensor storages, and records collectives and kernels of attention.

    Args:
        phase: kept current by the step.
        count_storages: off where the device's own allocator counts (CUDA).
        limit_bytes: bytes after which an allocation raises ``MemoryLimitError``.
        over_gloo: whether nothing is sent, where gloo would send it.

    Attributes:
        recomputed_products: matrix products that were computed again in backward so far.
        attention: kernels that torch has computed attention with in forward of a step's first
            micro-batch, and how often, once ``clear`` was called before the step.
    """

    def __init__(
        self,
        phase: Phase,
        *,
        count_storages: bool = True,
        limit_bytes: int | None = None,
        over_gloo: bool = False,
    ) -> None:
        super().__init__()
        self.current_bytes = 0
        self.peak_bytes = 0
        self.peak_by_phase: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.attention: Counter[str] = Counter()
        self.recomputed_products = 0
        self._products = frozenset(products())
        self._phase = phase
        self._count_storages = count_storages
        self._limit_bytes = limit_bytes
        self._over_gloo = over_gloo
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, _Storage] = {}
        self._plans: dict[int, Any] = {}
        self._propagating = 0
        self._home_mode: object = None
        self._undo: list[Callable[[], None]] = []

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now until it dies; a known one is counted once."""
        if not self._count_storages:
            return
        for plain in plain_tensors(tensor):
            # a fake tensor's own device, not its storage's; and asking for it is dispatched
            if (getattr(plain, "fake_device", None) or plain.device).type == "meta":
                continue
            self._count(plain)

    def _count(self, plain: torch.Tensor) -> None:
        storage = plain.untyped_storage()
        key, size = storage._cdata, rounded(storage.nbytes())
        known = self._sizes.get(key)
        if known != size:
            self._grow(key, size - (known or 0))
            if known is None:
                alive = self._alive[key] = _Storage(storage, self._died)
                alive.key = key

    def _died(self, storage: Any) -> None:
        key: int = storage.key
        if self._alive.get(key) is storage:
            del self._alive[key]
        self._free(key)

    def note_phase(self) -> None:
        name = self._phase.name
        self.peak_by_phase[name] = max(self.peak_by_phase[name], self.current_bytes)

    def reset_peak(self) -> None:
        self.peak_bytes = self.current_bytes
        self.peak_by_phase.clear()
        self.calls.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under a tracker: spare each operator torch's guard against it."""
        return False

    def __enter__(self) -> "StorageTracker":
        self._home_mode = fake_mode()
        # FSDP2 frees gathered parameters, and gathers again, by ``resize_`` of their storages,
        # which is not dispatched.
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            key = storage._cdata
            if key in self._sizes:
                self._grow(key, rounded(size) - self._sizes[key])
            return original(storage, size)

        setattr(torch.UntypedStorage, "resize_", resize)  # noqa: B010  (mypy wants it so)
        self._undo.append(lambda: setattr(torch.UntypedStorage, "resize_", original))
        # DTensor learns the shape of an operator's output by running it on global shapes: those
        # runs allocate what no rank holds.
        name = "_propagate_tensor_meta_non_cached"
        infer = getattr(ShardingPropagator, name)

        def propagate(*args: Any, **kwargs: Any) -> Any:
            self._propagating += 1
            try:
                return infer(*args, **kwargs)
            finally:
                self._propagating -= 1

        setattr(ShardingPropagator, name, propagate)
        self._undo.append(lambda: setattr(ShardingPropagator, name, infer))
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        while self._undo:
            self._undo.pop()()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # seen again as operators on local tensors
        kwargs = kwargs or {}
        plan = self._plans.get(id(func)) or self._plan(func)
        out = self._run(plan, func, args, kwargs)
        # no part of the step: DTensor's own inference, its fake mode, and instruments
        if self._propagating or self._phase.name == INSTRUMENT:
            return out
        if fake_mode() is not self._home_mode:
            return out
        kind = plan.collective
        if kind is not None:
            phase = self._phase
            self.calls.append(call_of(kind, args, kwargs, out, phase.name, phase.micro_batch))
        if isinstance(out, torch.Tensor):  # most operators', and quicker than a tree's leaves
            self.add(out)
        elif out is not None:
            for leaf in tensors_of(out):
                self.add(leaf)
        self._note(plan, func, args, kwargs, out)
        if plan.unpacks and self._count_storages:
            scales = kwargs.get("absmax_8bit")  # in bytes, of which it makes fp32 twice
            size = math.prod(args[2]) * out.element_size()
            size += 0 if scales is None else 8 * scales.numel()
            self.add(torch.empty(size, dtype=torch.uint8, device=out.device))
        if kind == "reduce_scatter" and self._over_gloo:
            # gloo would scatter a copy of what it reduces (``reduce_scatter`` in
            # torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)
            self._copy_for_gloo(max(tensors_of((args, kwargs)), key=torch.Tensor.numel))
        return out

    def _copy_for_gloo(self, whole: torch.Tensor) -> None:
        self.add(torch.empty_like(whole))

    def _run(self, plan: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _plan(self, func: Any) -> Any:
        unpacks = getattr(func, "_name", "") == UNPACKS
        plan = self._plans[id(func)] = Plan(collective=kind_of(func), unpacks=unpacks)
        return plan

    def _note(
        self, plan: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        # backward itself goes without gradients of its own
        if self._phase.name == "backward" and func in self._products and torch.is_grad_enabled():
            self.recomputed_products += 1
        # not where backward runs forward again, nor in micro-batches after the first
        if self._phase.name == "forward" and self._phase.micro_batch == 1:
            of_documents = getattr(func, "_opname", "") == VARLEN_FORWARD
            backend = "flash" if of_documents else ATTENTION.get(func)
            if backend is not None:
                self.attention[backend] += 1

    def _grow(self, key: int, by: int) -> None:
        limit = self._limit_bytes
        if limit is not None and by > 0 and self.current_bytes + by > limit:
            raise MemoryLimitError(by, self.current_bytes, limit)
        self._sizes[key] = self._sizes.get(key, 0) + by
        self.current_bytes += by
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        self.note_phase()

    def _free(self, key: int) -> None:
        self.current_bytes -= self._sizes.pop(key, 0)


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own inside a DTensor or another wrapper subclass."""
    subclass: Any = tensor  # a Tensor and a wrapper at once has no type
    if not is_traceable_wrapper_subclass(subclass):
        yield tensor
        return
    names, _ = subclass.__tensor_flatten__()
    for part in (getattr(subclass, name) for name in names):
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh too
            yield from plain_tensors(part)


def fake_mode() -> object:
    """The fake-tensor mode that is active beneath this one, if any."""
    mode: object = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode


def rounded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


# Integers of as many bytes as a parameter's elements have.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements that are summed at once: torch makes 8 bytes of each (``sum_out`` in
# aten/src/ATen/native/ReduceOps.cpp converts what it sums), in memory that the step may need.
_PIECE = 2**22


def frozen_sums(model: nn.Module) -> list[int]:
    """The sum of the bits, read as integers, of this rank's part of each frozen parameter, and of
    each tensor of scales of what is quantized."""
    frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in frozen]
    sums = []
    for part in (*parts, *scales(model)):
        pieces = part.view(_BITS[part.element_size()]).flatten().split(_PIECE)
        sums.append(torch.stack([piece.sum(dtype=torch.int64) for piece in pieces]).sum())
    # of a model that is offloaded some are on the host
    return [int(one) for one in torch.stack([one.cpu() for one in sums]).tolist()] if sums else []


def total_gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of the whole model's gradient, the same on all ranks.

    ``torch.nn.utils.clip_grad_norm_`` needs all gradients on one mesh and rounds to their
    dtype; this takes each gradient's own mesh and placements, squares in float32 and sums
    in float64. Plain tensors count as the same on all ranks. One all-reduce of a scalar for each
    mesh axis of each kind of split.

    Returns:
        A float64 scalar on the gradients' device; zero if no parameter has a gradient.

    Raises:
        ValueError: a gradient is yet to be summed over ranks (``Partial``).
    """
    # by the mesh and those of its axes that a gradient is split over; ``None`` for plain tensors
    squares: defaultdict[tuple[DeviceMesh, tuple[int, ...]] | None, list[Tensor]]
    squares = defaultdict(list)
    for grad in (parameter.grad for parameter in parameters):
        if grad is None:
            continue
        split, local = None, grad
        if isinstance(grad, DTensor):
            if any(p.is_partial() for p in grad.placements):
                raise ValueError(
                    "a gradient is not yet summed over ranks: reduce_partial_gradients first"
                )
            axes = [i for i, p in enumerate(grad.placements) if not p.is_replicate()]
            split, local = (grad.device_mesh, tuple(axes)), grad.to_local()
        norm: Tensor = torch.linalg.vector_norm(local, dtype=torch.float32)
        if split is not None:  # it may be offloaded to the host, where ranks do not communicate
            norm = norm.to(split[0].device_type)
        squares[split].append(norm.double().square())
    sums = []
    for split, parts in squares.items():
        total = torch.stack(parts).sum()
        if split is not None:
            mesh, axes_of_mesh = split
            for axis in axes_of_mesh:
                dist.all_reduce(total, group=mesh.get_group(axis))
        sums.append(total)
    return torch.stack(sums).sum().sqrt() if sums else torch.zeros((), dtype=torch.float64)


@dataclass(slots=True)
class Recomputed:
    """Counts layers whose forward runs in backward."""

    modules_of_layers: list[Counter[str]] = field(default_factory=list)
    """For each layer, how often forward of each module in it began."""

    @property
    def calls(self) -> int:
        # Those of the module that began most often: recomputing stops early, when all that was
        # kept is there again, so a layer's last modules may be left out.
        return sum(max(modules.values(), default=0) for modules in self.modules_of_layers)


@contextmanager
def watching(head: nn.Module) -> Iterator[list[bool]]:
    """Note, under this, whether the output head returns logits, and not a loss; by call."""
    found: list[bool] = []

    def look(_: nn.Module, __: object, output: object) -> None:
        found.append(not (torch.is_tensor(output) and output.dim() == 0))

    hook = head.register_forward_hook(look)
    try:
        yield found
    finally:
        hook.remove()


@contextmanager
def recomputing(layers: Sequence[nn.Module], phase: Phase) -> Iterator[Recomputed]:
    """Count, under this, the layers whose forward is run in backward: activation checkpointing.

    No collective shows it where nothing is split.
    """
    found, hooks = Recomputed(), []
    for layer in layers:
        counts = Counter[str]()
        found.modules_of_layers.append(counts)
        # Hooks of the layer itself are run again by some releases of transformers and not by
        # others, which keep them outside of what is checkpointed (``GradientCheckpointingLayer``
        # in transformers/modeling_layers.py); those of the modules in it are run again by all.
        for name, module in layer.named_children():

            def begins(*_: object, name: str = name, counts: Counter[str] = counts) -> None:
                counts[name] += phase.name == "backward"

            hooks.append(module.register_forward_pre_hook(begins))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
