"""Rates of this card as they were measured, in the place of the catalogue's."""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe_cases import Case

from gpu.place import Place
from tuner.core.cluster import parse_cluster
from tuner.cost.calibration import Calibration, calibrated
from tuner.cost.constants import default_costs
from tuner.cost.time.step import sharded_step_s
from workers.calibrate import Options, calibrate
from workers.stop import StopRequest


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured rates."""

    found: Calibration  # what `tuner calibrate` finds on one such card

    def computing_s(self, case: Case) -> float:
        """Seconds that one GPU computes in a step of a case, by these rates."""
        workload = case.workload
        where, costs = calibrated(self.found, workload.precision, case.cluster, default_costs())
        return sharded_step_s(workload, case.settings, where, costs, alone=True)[0]

    def as_dict(self) -> Mapping[str, Any]:
        """For the result file: what is measured once holds for all runs."""
        return self.found.as_dict()


def calibration(place: Place, kept: Mapping[str, Any] | None) -> Rates:
    """The rates of this machine's card; measuring them takes up to two minutes.

    Args:
        place: whose.
        kept: what an earlier run has measured; of another format it is not used.

    Raises:
        ProbeError: they cannot be measured.
    """
    return Rates(found=_read(kept) or _measured(place))


def _read(kept: Mapping[str, Any] | None) -> Calibration | None:
    """What an earlier run has measured; ``None``, with a note, if that cannot be read any more."""
    if kept is None:
        return None
    try:
        return Calibration.from_dict(kept)
    except (ValueError, KeyError, TypeError) as error:
        note = f"kept rates are of another version ({error!r}), and are measured anew"
        print(note, file=sys.stderr, flush=True)
        return None


def _measured(place: Place) -> Calibration:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
        options = Options(folder=Path(name), quick=place.reduced)
        return calibrate(parse_cluster(place.cluster(1)), StopRequest(), options=options)
