"""The ways to start the ranks of probes, by name."""

from enum import StrEnum


class LauncherName(StrEnum):
    """What starts the ranks of a worker's probes."""

    LOCAL = "local"  # the worker, on its machine
    SLURM = "slurm"  # srun, in the allocation that the worker is in
    RAY = "ray"  # actors of a Ray cluster
