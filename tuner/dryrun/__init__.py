"""Dry runs: one rank's training step on fake tensors, which gives exact memory without a device.

What is here decides which shallow models are dry-run (:mod:`tuner.dryrun.plan`), asks a process
that has torch to run them (:mod:`tuner.dryrun.process`), and extends what they show to the whole
model and to every micro-batch (:mod:`tuner.dryrun.profile`). It imports no torch.
"""

from tuner.dryrun.plan import (
    DryRunPlan,
    NotDryRunError,
    dry_run_versions,
    missing_package,
    plan_dry_runs,
    told,
)
from tuner.dryrun.process import DryRunner, DryRunStoppedError
from tuner.dryrun.profile import DryRun, Profile
from tuner.dryrun.trace import Trace

__all__ = [
    "DryRun",
    "DryRunPlan",
    "DryRunStoppedError",
    "DryRunner",
    "NotDryRunError",
    "Profile",
    "Trace",
    "dry_run_versions",
    "missing_package",
    "plan_dry_runs",
    "told",
]
