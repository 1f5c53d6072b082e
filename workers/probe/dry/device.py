"""A device without memory."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.probe.dry.ledger import Ledger
from workers.probe.dry.progress import Progress
from workers.probe.tracker import Phase


class _FakeMode(FakeTensorMode):
    """Without the guard against being compiled, which costs more than many an operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self.dispatch(func, types, args, kwargs or {})


class FakeDevice:
    """A place for fake tensors, counted as the allocator of a device of ``kind`` would.

    The tensors are fake *CPU* tensors for both kinds: autograd of a build of torch without
    CUDA aborts the process on fake CUDA ones. What differs between kinds and is followed here:
    on CUDA optimizers work on all parameters at once (``foreach``) and keep their step counts
    on the host; attention is computed operator by operator where the device has no fused kernel
    for it; on a CPU gloo copies what it scatters. What is not: a fused kernel of attention is
    CPU's on CUDA too. It keeps for backward what flash attention, cuDNN's kernel and the efficient
    one keep (q, k, v, a mask, the output, and one float32 per head and token), and what their
    backward takes beside it is not counted, cuDNN's above all, which is not known; autocast of
    forward without FSDP follows CPU's list of operators; cuBLAS's workspace is not counted.

    Args:
        phase: what the step is doing, kept current by the step.
        kind: cpu or cuda.
        progress: told each operator.
    """

    is_fake = True

    def __init__(self, phase: Phase, kind: str, progress: Progress) -> None:
        self.torch_device = torch.device("cpu")
        self.foreach: bool | None = True if kind == "cuda" else None
        self.tracker = Ledger(phase, progress, over_gloo=kind == "cpu")
        self._mode = _FakeMode(allow_non_fake_inputs=True)

    def memory(self) -> AbstractContextManager[object]:
        """Under this, new tensors have shapes and no values."""
        mode: AbstractContextManager[object] = self._mode
        return mode
