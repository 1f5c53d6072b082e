"""Between two probes of one process: it is brought back to what it was before the first.

Then a probe finds what it would find in a process of its own, but for modules that are imported
and kernels that are loaded.
"""

import functools
import gc
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState

from workers.probe.device import Device

LOADED_BYTES = 256 * 2**20
"""That a device's context may grow by after the first probe, with kernels that are loaded when
they are first wanted. A communicator that is not given back is larger."""


class Between:
    """What a process was before its first probe."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._threads = torch.get_num_threads()
        self._outside: int | None = None

    def clean_up(self, device: Device) -> int:
        """Return what the last probe took; to be called when nothing of it is in use any more.

        Args:
            device: the probe's.

        Returns:
            Bytes that did not come back.
        """
        device.synchronize()
        if dist.is_initialized():
            dist.destroy_process_group()  # communicators hold memory outside of the allocator
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        _forget_meshes()
        _forget_compiled()
        self._restore_process()
        gc.collect()
        return device.give_back() + self._grown(device.overhead_bytes())

    def _grown(self, outside: int) -> int:
        """Bytes outside of the allocator that are more than after the first probe, and its due."""
        if self._outside is None:
            self._outside = outside
        growth = outside - self._outside
        return growth if growth > LOADED_BYTES else 0

    def _restore_process(self) -> None:
        """Variables (accelerate sets some, and reads them later), threads, casts that are kept."""
        os.environ.clear()
        os.environ.update(self._environment)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        torch.clear_autocast_cache()


def _forget_meshes() -> None:
    """Empty torch.distributed's caches by mesh.

    A mesh equals another one of the same shape, so what was worked out on a mesh whose process
    groups are gone would be found again, with that mesh in it.
    """
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and _is_distributed(found):
            found.cache_clear()
    clear: Any = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:  # from torch 2.10 on, it has a cache of its own in C++
        clear()
    planners = sys.modules.get("torch.distributed.tensor._redistribute")
    if (clear := getattr(planners, "clear_redistribute_planner_cache", None)) is not None:
        clear()
    random: Any = sys.modules.get("torch.distributed.tensor._random")
    if random is not None:
        random._rng_tracker = None  # follows one mesh


def _is_distributed(cache: Any) -> bool:
    return str(getattr(cache, "__module__", "")).startswith("torch.distributed.")


def _forget_compiled() -> None:
    """Drop compiled functions: after some shapes torch compiles no more, and steps go uncompiled.

    ``torch._dynamo.config.recompile_limit`` counts for each function, for as long as the process.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
