"""How a worker runs probes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tuner.dryrun import DryRunner
from tuner.measurement import Fidelity
from workers.device_locks import default_lock_path
from workers.launchers.local import series_argv
from workers.launchers.site import LocalSite, Site
from workers.measuring.device_check import CheckedDevices
from workers.measuring.folders import default_probes_folder

PROBE_DEADLINE_S = 600.0
"""For one probe, unless the user gives more time. Its timed steps take 10 s or three steps; a hang
must not take the night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a worker runs probes."""

    queued_only: bool = False
    """Run what is queued and plan nothing."""
    serves: bool = False
    """Whether other studies may want this worker, and other workers its study: what waits for
    others is left, and what cannot be done here is queued again."""
    foresees: bool = False
    """Whether only the dry runs are made that a prediction wants, whatever the study's fidelity."""
    fidelity: Fidelity | None = None
    """Run probes of this one; by default of the one that the study's terms name."""
    folder: Path = field(default_factory=default_probes_folder)
    """For the folders of probes."""
    lock: Path = field(default_factory=default_lock_path)
    """Of each device of this machine a lock beside it is held while ranks run."""
    site: Site = field(default_factory=LocalSite)
    """Where probes run."""
    deadline_s: float = PROBE_DEADLINE_S
    """Seconds for one probe."""
    checked: CheckedDevices = field(default_factory=CheckedDevices)
    """GPUs that were looked at, by all workers of this process."""
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank of the probes that are ordered in a folder."""
    cold: bool = False
    """Start ranks anew for every probe."""
    dry_runner: Callable[[], DryRunner] = DryRunner
    """Makes the process that dry-runs."""
    guards: bool = True
    """Train a small twin of each finalist that was probed, unless its verdict is kept."""
    twin_argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank of the twins in a folder."""
