"""Ways to start the ranks of probes, by name. Commands read it, so it imports nothing else."""

import os
import shutil
from enum import StrEnum


class LauncherName(StrEnum):
    """Ways to start the ranks of a worker's probes."""

    LOCAL = "local"  # the worker, on its machine
    SLURM = "slurm"  # srun, in the allocation that the worker is in
    RAY = "ray"  # actors of a Ray cluster


def default_launcher() -> LauncherName:
    """Slurm's inside an allocation of several nodes, else the local one.

    Containers inherit an allocation's variables, and often have no ``srun`` to go with them.
    """
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    has_several = os.environ.get("SLURM_JOB_ID") and nodes.isdecimal() and int(nodes) > 1
    is_slurm = has_several and shutil.which("srun") is not None
    return LauncherName.SLURM if is_slurm else LauncherName.LOCAL
