"""Ways to start the ranks of probes, by name. Commands read it, so it imports nothing else."""

from enum import StrEnum


class LauncherName(StrEnum):
    """Ways to start the ranks of a worker's probes."""

    LOCAL = "local"  # the worker, on its machine
    SLURM = "slurm"  # srun, in the allocation that the worker is in
    RAY = "ray"  # actors of a Ray cluster
