"""Verdicts that are kept are those of the guard as it is.

When a test here fails, the code that decides a verdict has changed: the probe program's step, the
replica, or how it is judged. May a verdict change with it, because a fault is mended or was made?
Then raise ``GUARD_FORMAT`` in tuner/guard/replica.py, so that no kept verdict is trusted. In both
cases put the new values, which the failure shows, into ``PINNED``.
"""

from pathlib import Path

from tests.unit.dryrun.test_format import ROOT, digest, sources
from tuner.guard.replica import GUARD_FORMAT

PINNED = (4, "fd9eae3f2b4172461fc09c1e46b776bf89cd0a4c292f6a70d1c140a25b466e36")
"""``GUARD_FORMAT``, and the digest of the sources that it stands for."""
PROGRAM = ROOT / "workers" / "probe" / "run.py"
"""From here on all that a rank imports of ours decides what it trains and what it sees."""
JUDGES = (
    *sorted((ROOT / "tuner" / "guard").glob("*.py")),
    ROOT / "tuner" / "dryrun" / "plan.py",
    ROOT / "tuner" / "cost" / "time" / "collectives.py",
    ROOT / "tuner" / "cost" / "memory" / "step.py",
    ROOT / "tuner" / "cost" / "memory" / "shards.py",
    ROOT / "workers" / "replicas.py",
    ROOT / "workers" / "measuring" / "merge.py",
    ROOT / "workers" / "measuring" / "records.py",
)
"""What makes a replica, and what holds it against what its settings must cause."""


def test_verdicts_that_may_change_raise_the_format():
    found = (GUARD_FORMAT, digest([*sources(PROGRAM), *JUDGES]))
    assert found == PINNED, f"see the docstring of {Path(__file__).name}: PINNED = {found}"
