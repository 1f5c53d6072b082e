"""Runs parts: case after case, each kept as soon as it is done, until the time is up."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from common import RESULTS, as_rows, show
from dry import LIMIT_S, Dried, dry_run_all

from gpu.cases import GpuCase, Part, Way, cases_of
from gpu.file import ResultFile
from gpu.goals import GIB, goals
from gpu.place import Place, this_place
from gpu.probing import Probed, prober, why_not_here
from gpu.rows import Tried, row_of
from tuner.core.cluster import Device, parse_cluster
from tuner.core.measurement import Outcome
from tuner.cost.calibration import Calibration
from tuner.dryrun import DryRunner
from tuner.errors import ProbeError, UsageError
from tuner.machine import usable_cores
from workers.calibrate import Options, calibrate
from workers.stop import StopRequest

MINUTES = 7.5
"""Of one part: so that it ends within 8, with the report."""
DEADLINE_S = 180.0
"""Of one probe; a real one takes a tenth of it."""
SLOWER = 1.25
"""A case may take so many times as long as those before it."""
JOBS = 4
"""Dry runs at the same time: a class is two or four of them."""
DRY_RUN_PARTS = frozenset({Part.MEMORY, Part.SEED, Part.RECOMPUTE})
"""Parts that are about memory. Their cases are dry-run meanwhile, on other cores."""
QUIET = frozenset({Part.RECOMPUTE})
"""Of these, those that are about time too: dry-run before, so that nothing runs beside a probe."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a part."""

    part: Part
    place: Place
    file: ResultFile
    until: float  # when it must be over, by the monotonic clock
    dry_runs: "DryRunsBeside"  # makes dry runs while probes run
    prober: Callable[[Way], AbstractContextManager[Callable[[GpuCase, float], Probed]]] = prober
    """Starts what runs cases."""
    rates: Calibration | None = None  # measured rates of the card
    way: Way | None = None  # how probes are started; `None`: as the part does it

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()

    def may_start(self, found: GpuCase) -> bool:
        """Whether a case can end in time, by those before it."""
        known = self.file.expected_s(self.part, found.case.workload.model.name)
        return self.left_s > SLOWER * known

    def row(self, found: GpuCase, way: Callable[[GpuCase, float], Probed]) -> dict[str, Any]:
        """Run a case.

        Raises:
            TimeoutError: the time was up in the middle of it, which says nothing of the case.
            ProbeError: it could not be run: a device was lost before, and is not there again.
        """
        started = time.monotonic()
        dry_runs = self._dry_runs(found)
        if self.part in QUIET:
            dry_runs.result(self.left_s)
        why_not = why_not_here(found)
        tried = Tried(
            found=found,
            probed=None if why_not else self._probe(found, way),
            why_not=why_not,
            dried=dry_runs.result(max(0.0, self.left_s)),
            rates=self.rates,
            wall_s=time.monotonic() - started,
        )
        return row_of(tried, self.file.commit)

    def _dry_runs(self, found: GpuCase) -> "Future[Dried | None]":
        if self.part in DRY_RUN_PARTS:
            return self.dry_runs.of(found)
        none: Future[Dried | None] = Future()
        none.set_result(None)
        return none

    def _probe(self, found: GpuCase, way: Callable[[GpuCase, float], Probed]) -> Probed:
        deadline_s = min(DEADLINE_S, max(1.0, self.left_s))
        probed = way(found, deadline_s)
        if probed.measurement.outcome is Outcome.TIMEOUT and deadline_s < DEADLINE_S:
            raise TimeoutError
        return probed


class DryRunsBeside:
    """Dry runs in a process of their own, as a context; those of a class are made once."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._pool = stack.enter_context(ThreadPoolExecutor(1))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            self._kept = Path(folder) / "dry-runs.jsonl"
            self._runner = stack.enter_context(
                DryRunner(limit_s=LIMIT_S, jobs=min(JOBS, usable_cores()))
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def of(self, found: GpuCase) -> "Future[Dried | None]":
        """Those of a case's class; ``None`` if the process died."""
        return self._pool.submit(self._make, found)

    def _make(self, found: GpuCase) -> Dried | None:
        try:
            return dry_run_all([found.case], self._kept, self._runner)
        except ProbeError as error:  # the row has arithmetic alone
            print(f"no dry run: {error}", file=sys.stderr, flush=True)
            return None


def run_part(run: Run) -> int:
    """Run what is left of a part while there is time; how many of its cases are left then.

    It ends too where a device that was lost is not there again.
    """
    cases = cases_of(run.part, run.place, run.way)
    left = [one for one in cases if one.key not in run.file.done]
    started, number = time.monotonic(), 0
    if run.part is Part.TIME and left:
        run = replace(run, rates=_rates(run))
    with ExitStack() as stack:
        wanted = dict.fromkeys(found.way for found in left)
        ways = {way: stack.enter_context(run.prober(way)) for way in wanted}
        while number < len(left) and run.may_start(left[number]):
            try:
                row = run.row(left[number], ways[left[number].way])
            except TimeoutError:
                break
            except ProbeError as error:
                print(f"{run.part} ends: {error}", file=sys.stderr, flush=True)
                break
            run.file.add(row)
            number += 1
            print(f"{number}/{len(left)} {_line(row)}", file=sys.stderr, flush=True)
    wall_s = round(time.monotonic() - started, 1)
    run.file.add_run({"part": str(run.part), "rows": number, "wall_s": wall_s})
    return len(left) - number


def _rates(run: Run) -> Calibration | None:
    """The card's rates, measured once for its file; that takes of the part's time.

    ``None`` where they cannot be measured: figures after calibration then stay unmeasured.
    """
    if run.file.rates is not None:
        try:
            return Calibration.from_dict(run.file.rates)
        except (ValueError, KeyError, TypeError) as error:
            note = f"kept rates are of another version ({error!r}), and are measured anew"
            print(note, file=sys.stderr, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
            options = Options(folder=Path(name), quick=run.place.reduced)
            found = calibrate(parse_cluster(run.place.cluster(1)), StopRequest(), options=options)
    except ProbeError as error:
        print(f"no measured rates: {error}", file=sys.stderr, flush=True)
        return None
    run.file.keep_rates(found.as_dict())
    return found


def _line(row: dict[str, Any]) -> str:
    memory = (row["measurement"] or {}).get("memory")
    found = f" {memory['allocated_bytes'] / GIB:.2f} GiB" if memory else f" {row['detail']}"
    return f"{row['key']}: {row['outcome']}{found}, {row['case_s']:.0f} s"


def run_parts(
    parts: Sequence[Part],
    place: Place,
    file: ResultFile,
    minutes: float,
    way: Way | None = None,
) -> None:
    """Run parts one after the other, each in its own time."""
    with DryRunsBeside() as dry_runs:
        for part in parts:
            run = Run(part=part, place=place, file=file, dry_runs=dry_runs, way=way,
                      until=time.monotonic() + 60 * minutes)  # fmt: skip
            left = run_part(run)
            print(f"{part}: {'done' if not left else f'{left} cases left, run it again'}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_gpu.py")
    parser.add_argument("part", nargs="?", choices=[*Part, "all"], default="all")
    parser.add_argument("--device", type=Device, choices=list(Device), default=Device.CUDA)
    parser.add_argument("--reduced", action="store_true", help="tiny models, a few rows a part")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for each part")
    parser.add_argument(
        "--warm",
        action="store_true",
        help="all probes of a part in one process: more of them in the time",
    )
    parser.add_argument("--out", type=Path, help="the result file; by default of the card")
    options = parser.parse_args()
    if options.out is None and (options.reduced or options.device is Device.CPU):
        parser.error("--out is needed: what is reduced, or of a CPU, is no result of a card")
    if options.device is Device.CPU and not options.reduced:
        parser.error("--device cpu runs the real models only --reduced")
    try:
        place = this_place(options.device, reduced=options.reduced)
        out = options.out or RESULTS / f"{place.gpu}.json"
        file = ResultFile(out, place.gpu, place.title)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    parts = list(Part) if options.part == "all" else [Part(options.part)]
    way = Way.WARM if options.warm else None
    run_parts(parts, place, file, options.minutes, way)
    show("goals", as_rows(goals(file.rows, file.runs)))
    print(f"written: {out}")
    return 0
