"""Seconds of a piece of work, alike on all ranks and with launches hidden as in training."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from workers.probe.device import Device

BATCH_S = 0.005
"""Of work that is queued before the device is waited for: waiting costs about 20 us on CUDA."""
MOST_AT_ONCE = 200
"""Calls of one batch."""
REPETITIONS = (3, 12)
"""Batches that are timed, at least and at most."""


class Stopwatch:
    """Times work on one device, with all ranks at it together.

    A batch of calls is queued and then waited for, by the host's clock: what the device does alone
    takes the device's time, what the host cannot launch quickly enough takes the host's, as in a
    training step.

    Args:
        device: what computes.
        case_s: seconds for one case's repetitions, about.
    """

    def __init__(self, device: Device, case_s: float) -> None:
        self._device = device
        self._case_s = case_s

    def seconds_of(self, work: Callable[[], object]) -> list[float]:
        """Seconds of one call, in each batch; ``work`` must do the same on every rank.

        A call that takes all of a case's seconds is not repeated more than must be.
        """
        least, most = REPETITIONS
        self._batch_s(work, 1)  # kernels are loaded and chosen, pools and communicators are made
        own = self._batch_s(work, 1)
        once = self.slowest(own)
        if once >= self._case_s:
            return [own, *(self._batch_s(work, 1) for _ in range(least - 1))]
        once = self.slowest(self._batch_s(work, 1))
        calls = min(MOST_AT_ONCE, max(1, round(BATCH_S / once)))
        batches = max(least, min(most, int(self._case_s / (once * calls))))
        self.meet()
        return [self._batch_s(work, calls) / calls for _ in range(batches)]

    def slowest(self, seconds: float) -> float:
        """The largest over all ranks, so that all decide alike."""
        found = torch.tensor(max(seconds, 1e-9), dtype=torch.float64)
        found = found.to(self._device.torch_device)
        if dist.is_initialized():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def meet(self) -> None:
        """Wait for all ranks."""
        self.slowest(0.0)

    def _batch_s(self, work: Callable[[], object], calls: int) -> float:
        self._device.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        self._device.synchronize()
        return time.perf_counter() - started
