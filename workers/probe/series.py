"""One rank of several probes, one after the other: starting a rank takes seconds.

Between two probes the process is brought back to what it was before the first. Then a probe finds
what it would find in a process of its own, but for modules that are imported and kernels that are
loaded.
"""

import functools
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState

from workers.probe.check import check
from workers.probe.device import Device
from workers.probe.group import rendezvous
from workers.probe.orders import SPEC, SPENT, header, orders
from workers.probe.record import Record

# Bytes of all probes together that may stay in use on the device between two: tables that libraries
# keep. More may be a leak, which the next probe would pay for.
ALLOWED_BYTES = 8 * 2**20
# Bytes that a device's context may grow by after the first probe, with kernels that are loaded when
# they are first needed. A communicator that is not given back is larger.
LOADED_BYTES = 256 * 2**20


def run_series(out: Path, how: str = "file") -> Record:
    """Run this process's rank of every order in ``out``, and write its records.

    All are of the same number of ranks, fidelity and device. Each joins its own process group
    and has its record beside its spec, written when what the probe took has come back. The first
    that fails is the last, since other ranks may hang then; nothing is returned after it. The
    last record is in ``out`` too.

    Returns:
        The last record.
    """
    record: Record | None = None
    between: Between | None = None
    for place in orders(out):
        sys.stdout.write(header(place.name))
        sys.stdout.flush()
        meeting = rendezvous(place, how)
        order = json.loads((place / SPEC).read_text(encoding="utf-8"))
        if "check" in order:
            record, _ = check(order["check"], place, meeting)
        elif "cases" in order:
            from workers.probe.calibrate import calibrate

            record = calibrate(order, meeting)
        else:
            # transformers takes seconds to import, and a look at devices does without
            from workers.probe.run import run_probe

            between = between or Between()
            record, device = run_probe(place / SPEC, meeting)
            if record.is_well:
                assert device is not None
                try:
                    if between.clean_up(device) > ALLOWED_BYTES:
                        (out / SPENT).touch()
                except Exception as error:  # noqa: BLE001  (any error becomes the record's outcome)
                    # what the device reports only now is the probe's outcome
                    record.fail(error, "finish", device)
        record.write(place)
        if not record.is_well:
            break
    assert record is not None, f"no orders in {out}"
    record.write(out)
    return record


class Between:
    """The state of a process before its first probe, and the way back to it."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._threads = torch.get_num_threads()
        self._outside: int | None = None

    def clean_up(self, device: Device) -> int:
        """Return what the last probe took; to be called when nothing of it is in use any more.

        Returns:
            Bytes that did not come back.
        """
        device.synchronize()
        if dist.is_initialized():
            dist.destroy_process_group()  # communicators hold memory outside of the allocator
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        _forget_meshes()
        # After some shapes torch compiles no more, and steps go uncompiled:
        # ``torch._dynamo.config.recompile_limit`` counts for each function, for as long as the
        # process.
        dynamo: Any = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            dynamo.reset()
        os.environ.clear()  # accelerate sets some, and reads them later
        os.environ.update(self._environment)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        torch.clear_autocast_cache()
        gc.collect()
        left_bytes, outside = device.give_back(), device.overhead_bytes()
        # outside of the allocator, by what is there after the first probe, and its due
        if self._outside is None:
            self._outside = outside
        growth = outside - self._outside
        return left_bytes + (growth if growth > LOADED_BYTES else 0)


def _forget_meshes() -> None:
    """Empty torch.distributed's caches by mesh."""
    # A mesh equals another one of the same shape, so what was worked out on a mesh whose process
    # groups are gone would be found again, with that mesh in it.
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and str(
            getattr(found, "__module__", "")
        ).startswith("torch.distributed."):
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
