"""Which site a worker has, by the name of its launcher."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tuner.launcher import LauncherName
from workers.launchers.site import LocalSite, Site
from workers.stop import StopRequest


def default_launcher() -> LauncherName:
    """Slurm's inside an allocation of several nodes, else the local one.

    Containers inherit an allocation's variables, and often have no ``srun`` to go with them.
    """
    from workers.launchers.slurm_site import has_several_nodes

    is_slurm = has_several_nodes(os.environ) and shutil.which("srun") is not None
    return LauncherName.SLURM if is_slurm else LauncherName.LOCAL


def open_site(
    launcher: LauncherName, stop: StopRequest, folder: Path, *, ray: str = ""
) -> AbstractContextManager[Site]:
    """The site of a launcher, as a context.

    Args:
        launcher: which.
        stop: is requested when the site is gone for good.
        folder: for the files of probes.
        ray: address of a Ray cluster; else that of RAY_ADDRESS, or one is started.

    Raises:
        UsageError: it cannot be had here.
        ProbeError: it does not answer, when the context is entered.
    """
    if launcher is LauncherName.SLURM:
        from workers.launchers.slurm_site import slurm_site

        return slurm_site(stop, folder)
    if launcher is LauncherName.RAY:
        from workers.launchers.ray.site import ray_site

        return ray_site(ray or os.environ.get("RAY_ADDRESS", ""))
    return nullcontext(LocalSite())
