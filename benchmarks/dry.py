"""Dry runs for benchmarks: those of many cases at once, made anew in every run."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.framework import Framework
from tuner.core.workload import Workload
from tuner.dryrun import (
    DryRun,
    DryRunner,
    DryRunPlan,
    NotDryRunError,
    dry_run_versions,
    plan_dry_runs,
)

LIMIT_S = 300.0
"""CPU seconds of the dry runs of one class; more than users wait, for this machine is busy."""


class Asked(Protocol):
    """What a row of any table says of what was run."""

    @property
    def workload(self) -> Workload:
        """What is trained."""

    @property
    def cluster(self) -> Cluster:
        """Where."""

    @property
    def framework(self) -> Framework:
        """With which stack."""

    @property
    def settings(self) -> Settings:
        """How."""


@dataclass(frozen=True, kw_only=True)
class Dried:
    """Dry runs by the key of their plan."""

    dry_runs: Mapping[str, DryRun]  # what was run
    refused: Mapping[str, str]  # why settings were not, by their text
    seconds: float  # all of it, with the start of the process

    @property
    def requests(self) -> int:
        """Dry runs, one for each depth of each class."""
        return sum(len(one.depths) for one in self.dry_runs.values())

    def of(self, row: Asked) -> DryRun | None:
        """The dry run of a row's class; ``None`` where none is possible."""
        plan = _plan(row)
        return self.dry_runs[plan.key] if isinstance(plan, DryRunPlan) else None

    def why_not(self, row: Asked) -> str:
        """Why a row has no profile; empty when it has one."""
        found = self.of(row)
        return self.refused[_name(row)] if found is None else found.error


def dry_run_all(
    rows: Iterable[Asked], kept: Path | None = None, runner: DryRunner | None = None
) -> Dried:
    """Dry-run every class of the rows, once each.

    Args:
        rows: what to dry-run.
        kept: a file of dry runs that are not made again, and to which new ones are added; for
            trying things out, since the program that dry-runs may have changed.
        runner: the process to ask, if there is one already.
    """
    plans, refused = {}, {}
    for row in rows:
        plan = _plan(row)
        if isinstance(plan, DryRunPlan):
            plans[plan.key] = plan
        else:
            refused[_name(row)] = plan
    started = time.perf_counter()
    found = {key: one for key, one in _read(kept).items() if key in plans}
    left = [plan for key, plan in plans.items() if key not in found]
    with DryRunner(limit_s=LIMIT_S) if runner is None else nullcontext(runner) as known:
        for number, one in enumerate(known.made(left), 1):
            found[one.key] = one
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(one.as_dict()) + "\n")
            if number % 10 == 0:
                print(f"{number} of {len(left)} classes dry-run", file=sys.stderr, flush=True)
    return Dried(dry_runs=found, refused=refused, seconds=time.perf_counter() - started)


def _read(kept: Path | None) -> dict[str, DryRun]:
    if kept is None or not kept.exists():
        return {}
    found = [DryRun.from_dict(json.loads(line)) for line in kept.read_text().splitlines()]
    return {one.key: one for one in found}


def _plan(row: Asked) -> DryRunPlan | str:
    """The plan, or why there is none."""
    try:
        versions = dry_run_versions()
        return plan_dry_runs(row.workload, row.cluster, row.framework, row.settings, versions)
    except NotDryRunError as error:
        return error.reason


def _name(row: Asked) -> str:
    return f"{row.workload.model.name} {row.cluster.name} {row.settings}"
