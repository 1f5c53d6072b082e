"""What emulates: the card that is here, or this machine's CPU."""

from dataclasses import dataclass

from tuner import machine
from tuner.core.cluster import Device, local_cluster
from tuner.errors import UsageError

RANKS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the benchmark runs."""

    device: Device  # what a probe runs on
    gpu: str  # the catalogue's name of the card; `cpu` without one
    title: str  # the device in the result file's words
    reduced: bool = False  # whether tiny models stand for the real ones

    def cluster(self, ranks: int) -> str:
        """A cluster of such cards, with 8 on each node, as a user writes it."""
        nodes = max(1, ranks // RANKS_PER_NODE)
        if self.device is Device.CPU:
            return f"cpu:{ranks}" if nodes == 1 else f"{nodes}x{RANKS_PER_NODE}xcpu"
        here = f"{ranks // nodes}x{self.gpu}"
        return here if nodes == 1 else f"{nodes}x{here}"


def this_place(device: Device, *, reduced: bool) -> Place:
    """The place that this machine is.

    Raises:
        UsageError: there is no GPU here, or it is not in the catalogue of GPUs.
    """
    if device is Device.CPU:
        title = f"cpu, {machine.usable_cores()} cores"
        return Place(device=device, gpu="cpu", title=title, reduced=reduced)
    here = local_cluster()
    if here.gpu.device is not Device.CUDA:
        without = "try --device cpu --reduced"
        raise UsageError("device", "cuda", f"nvidia-smi shows no GPU here; {without}")
    if here.gpu.dense_bf16_flops_per_s is None:
        raise UsageError("device", here.gpu.name, "is not in the catalogue of GPUs")
    title = machine.visible_gpus()[0].name
    return Place(device=device, gpu=here.gpu.name, title=title, reduced=reduced)
