"""Calibrations that are kept are those of the program as it is.

When a test here fails, what is timed has changed, or how rates are made of it. Do the rates of a
device change with it? Then raise ``FORMAT`` in tuner/cost/calibration.py, so that no kept
calibration is taken for a new one. In both cases put the new values, which the failure shows, into
``PINNED``.
"""

from pathlib import Path

from tests.unit.dryrun.test_format import ROOT, digest
from tuner.cost.calibration import FORMAT

PINNED = (3, "5c47cf268165a6f46d8d2045d278bb481533d70f9e4cf01d77e71ec38f1868c3")
"""``FORMAT``, and the digest of the sources that it stands for."""
SOURCES = (
    ROOT / "workers" / "probe" / "calibrate.py",
    ROOT / "workers" / "calibrate.py",
    ROOT / "tuner" / "cost" / "calibration_fit.py",
    ROOT / "tuner" / "cost" / "calibration.py",
)
"""What is timed and how, and what makes rates of it."""


def test_rates_that_change_raise_the_format() -> None:
    found = (FORMAT, digest(list(SOURCES)))
    assert found == PINNED, f"see the docstring of {Path(__file__).name}: PINNED = {found}"
