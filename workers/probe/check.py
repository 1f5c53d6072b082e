"""A rank's look at its device and its peers, before probes and after a device was lost.

It is an order like a probe's, and the first of new processes: they stay for the probes that follow.
Its record's ``hardware`` (:class:`workers.probe.record.Record`) tells of device and driver, and
``error`` the one reason why no probe can be run, as a sentence for people.
"""

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.probe import nvidia_smi
from workers.probe.device import CudaDevice, Device
from workers.probe.errors import cuda_code
from workers.probe.group import Meeting, heed_peer_access, join
from workers.probe.orders import RECORDED
from workers.probe.record import Record, Recording, recording

# Rows of the matrices that are multiplied: nothing to any device, and yet a library's kernel.
SIDE = 256
# Sums of the ranks' ones: a quarter of a MiB, for which NCCL already uses its buffers.
SUMS = 2**16
# Seconds for all ranks to meet and to send a few bytes: NCCL takes one or two in a node, and some
# more over a network.
ALL_REDUCE_S = 60.0
# Lowest Linux driver for each major version of CUDA, whose minor versions all run on it: NVIDIA's
# CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
# Version Compatibility".
MINIMUM_DRIVER: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# The most that a context takes on a device by itself: 0.3 to 0.7 GiB, by generation.
OWN_BYTES = 768 * 2**20
# Bytes that others may hold: a desktop, a monitor. More would change what fits.
FREE_BYTES = 2**30
# Seconds for memory to come back of processes that have just ended.
RETURN_S = 10.0
# Bytes of /dev/shm for several ranks: NCCL's user guide has containers started with 1 GiB of it
# ("Troubleshooting", "Shared Memory").
LEAST_SHM_BYTES = 2**30
# Variables that change what torch's caching allocator does.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
# Hints by CUDA's code of the error (``cudaError_t`` in driver_types.h).
HINTS: Mapping[int, str] = {
    46: "another process has the GPU for itself, or its compute mode forbids all",
    802: "GPUs behind NVSwitch need NVIDIA's fabric manager: systemctl start nvidia-fabricmanager",
    803: "the driver's library and its kernel module differ: restart the machine",
}


class UnusableError(RuntimeError):
    """No probe can be run on a device; the text says why, and what to do."""


def check(device_type: str, place: Path, meeting: Meeting) -> tuple[Record, Device | None]:
    """Finds out whether this process can use its device, and talk to the other ranks.

    Returns:
        The record, whose outcome is ok or anything else, and the device, if it was opened.
    """
    found: dict[str, Any] = {}
    with recording() as own:
        own.phase.name = "check"
        shm = _shm()
        found |= {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "driver": driver_version(),
            "shm_bytes": shm.total if shm else None,
            "shm_free_bytes": shm.free if shm else None,
            "allocator": {name: os.environ[name] for name in ALLOCATOR if name in os.environ},
        }
        if device_type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
            names = smi("--query-gpu=name")
            shown = f"; nvidia-smi shows {len(names)} x {names[0]}" if names else ""
            raise UnusableError(
                f"torch {torch.__version__} is a CPU build{shown}: install a CUDA build"
                " (https://pytorch.org/get-started/locally/)"
            )
        try:
            device = own.open_device(device_type)
        except Exception as error:
            if device_type != "cuda":
                raise
            raise UnusableError(_why_closed(error)) from error
        if isinstance(device, CudaDevice):
            found |= _memory(device)
        # copy, multiply and read: a device can open, and compute nothing or something else
        ones = torch.ones(SIDE, SIDE).to(device.torch_device)
        sums = (ones @ ones).cpu().unique().tolist()  # waits for the device
        if sums != [SIDE]:
            raise ArithmeticError(f"sums of {SIDE} ones are {sums[:4]}")
        if int(os.environ["WORLD_SIZE"]) > 1:
            own.phase.name = "all-reduce"
            _all_reduce(own, device, place, meeting)
        device.give_back()
        own.record.outcome = "ok"
    own.record.hardware |= found
    return own.record, own.device


def driver_version(root: Path = Path("/")) -> str:
    """The version of NVIDIA's driver, such as 580.65.06; empty where it is not told."""
    try:
        text = (root / "proc" / "driver" / "nvidia" / "version").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if told := re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text):
        return told[1]
    lines = smi("--query-gpu=driver_version")
    return lines[0] if lines and re.fullmatch(r"[\d.]+", lines[0]) else ""


def smi(*query: str) -> list[str]:
    """Lines of ``nvidia-smi``'s answer, which may have to wake GPUs first."""
    return nvidia_smi.rows(*query, timeout_s=20.0)


def _why_closed(error: Exception) -> str:
    build = f"torch {torch.__version__} (CUDA {torch.version.cuda})"
    if too_old := why_too_old(driver_version(), torch.version.cuda or "", build):
        return too_old
    words = type(error).__name__
    if text := str(error).strip():
        words = f"{words}: {text.splitlines()[0]}"[:300]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
    hint = HINTS.get(cuda_code(error) or 0, "")
    return f"{build} cannot use its GPU{shown}: {words}{f'; {hint}' if hint else ''}"


def why_too_old(driver: str, cuda: str, build: str) -> str:
    """The reason why a driver cannot run a build of torch, and what to do; empty if it can."""

    def parts(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split("."))

    least = MINIMUM_DRIVER.get(int(cuda.split(".")[0])) if cuda else None
    if not driver or least is None or parts(driver) >= parts(least):
        return ""
    runs = [major for major, first in MINIMUM_DRIVER.items() if parts(driver) >= parts(first)]
    other = f", or install a build of torch for CUDA {max(runs)}" if runs else ""
    return (
        f"the NVIDIA driver {driver} is too old for {build}, which needs {least} or newer: update"
        f" the driver{other}"
    )


def _memory(device: CudaDevice) -> dict[str, int]:
    """Free and total bytes before the first allocation. Raises UnusableError: others hold more than
    a little, and do not give it back."""
    until = time.monotonic() + RETURN_S
    while True:
        free, total = torch.cuda.mem_get_info(device.torch_device)
        own_bytes = torch.cuda.memory_reserved(device.torch_device) + OWN_BYTES
        others = total - free - own_bytes
        # an integrated GPU's memory is the machine's, of which others may hold what they like
        is_integrated = torch.cuda.get_device_properties(device.torch_device).is_integrated
        if others <= FREE_BYTES or is_integrated:
            return {"free_bytes": free, "total_bytes": total}
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    uuid = f"GPU-{torch.cuda.get_device_properties(device.torch_device).uuid}"
    gpus = (row.partition(", ") for row in smi("--query-gpu=uuid,index"))
    index = next((index for its, _, index in gpus if its == uuid), uuid)
    apps = [row.split(", ") for row in smi("--query-compute-apps=gpu_uuid,pid,process_name")]
    held_by = [
        f"{app[1]} ({app[2]})"
        for app in apps
        if len(app) == 3 and app[0] == uuid and app[1] != str(os.getpid())
    ]
    whom = f"process {', '.join(held_by)}" if held_by else "other processes"
    raise UnusableError(
        f"GPU {index} is busy: {others / 2**30:.1f} GiB are held by {whom}: free it, or choose"
        " other GPUs with CUDA_VISIBLE_DEVICES"
    )


def _all_reduce(own: Recording, device: Device, place: Path, meeting: Meeting) -> None:
    """Meet the other ranks, and sum ones over them. Raises UnusableError: it cannot be done, or the
    sum is wrong."""
    ranks = int(os.environ["WORLD_SIZE"])

    def give_up() -> None:
        # the main thread may hang in NCCL for good: this one ends the process for it
        late = TimeoutError(f"it is not done after {ALL_REDUCE_S:.0f} s")
        own.record.fail(UnusableError(_no_all_reduce(device, late)), own.phase.name, None)
        own.record.write(place)
        sys.stderr.flush()
        os._exit(RECORDED)

    alarm = threading.Timer(ALL_REDUCE_S, give_up)
    alarm.daemon = True
    alarm.start()
    try:
        own.record.hardware |= heed_peer_access(device.torch_device)
        join(ranks, own.rank, device.backend, meeting, device.torch_device)
        total = torch.ones(SUMS).to(device.torch_device)
        dist.all_reduce(total)
        if (found := total.cpu().unique().tolist()) != [ranks]:
            raise ArithmeticError(f"sums of {ranks} ones are {found[:4]}")
        dist.barrier()  # no rank leaves while another still talks to it
        dist.destroy_process_group()
    except Exception as error:
        raise UnusableError(_no_all_reduce(device, error)) from error
    finally:
        alarm.cancel()


def _no_all_reduce(device: Device, error: Exception) -> str:
    said = " ".join(str(error).split())
    # NCCL's own reason is the last thing that torch says
    words = said.rpartition("Last error:")[2].strip() or said or type(error).__name__
    if device.type != "cuda":
        return f"the ranks cannot all-reduce over {device.backend}: {words[-300:]}"
    shm, small = _shm(), ""
    if shm is not None and shm.total < LEAST_SHM_BYTES:
        small = (
            f"; /dev/shm has {shm.total / 2**20:.0f} MiB, and NCCL needs about 1 GiB with several"
            " GPUs: docker run --shm-size=1g, or --ipc=host"
        )
    more = "; NCCL_DEBUG=INFO says more"
    return f"the ranks cannot all-reduce over NCCL: {words[-300:]}{small}{more}"


def _shm() -> Any:
    """Sizes of the memory that processes of this machine share; ``None`` where there is none."""
    place = Path("/dev/shm")  # noqa: S108  (looked at only)
    return shutil.disk_usage(place) if place.is_dir() else None
