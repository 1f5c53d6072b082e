"""Parts end in their time, and go on where they stopped."""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tuner.core.cluster import Device
from tuner.core.measurement import Measurement, Outcome
from tuner.errors import ProbeError

pytestmark = pytest.mark.long


@pytest.fixture
def started(benchmark, tmp_path, monkeypatch):
    """A run of a part, with a stand-in for probing."""
    program, place = benchmark("gpu.program"), benchmark("gpu.place")
    monkeypatch.setattr(program, "why_not_here", lambda found: "")
    here = place.Place(device=Device.CUDA, gpu="h200", title="x", reduced=True)
    file = benchmark("gpu.file").ResultFile(tmp_path / "x.json", "h200", "x")

    def make(part, left_s, outcome=Outcome.CRASHED):
        seen = []

        def probe(found, deadline_s):
            seen.append(found.key)
            probed = benchmark("gpu.probing").Probed
            return probed(measurement=Measurement(outcome=outcome))

        @contextmanager
        def prober(way):
            yield probe

        run = program.Run(
            part=benchmark("gpu.cases").Part(part),
            place=here,
            file=file,
            until=time.monotonic() + left_s,
            dry_runs=None,
            prober=prober,
        )
        return run, seen

    return make


@pytest.fixture
def run_part(benchmark):
    return benchmark("gpu.program").run_part


def test_no_case_is_started_that_cannot_end_in_time(started, run_part):
    run, seen = started("grid", 10.0)
    run.file.add({"key": "earlier", "part": "grid", "model": "tiny", "outcome": "ok",
                  "case_s": 9.0})  # fmt: skip
    assert run_part(run) == 2
    assert seen == []
    longer, seen = started("grid", 100.0)
    assert run_part(longer) == 0
    assert len(seen) == 2


def test_a_device_that_stays_lost_ends_the_part_and_its_case_is_run_again(
    started, run_part, capsys
):
    """The first probe loses its device, and before the second it is found to be gone."""
    run, seen = started("grid", 500.0, Outcome.DEVICE_LOST)
    lost, gone = run.prober, [False, True]

    @contextmanager
    def prober(way):
        def probe(found, deadline_s):
            if gone.pop(0):
                raise ProbeError("a device was lost, and is not there again")
            return tried(found, deadline_s)

        with lost(way) as tried:
            yield probe

    assert run_part(replace(run, prober=prober)) == 1
    assert [row["outcome"] for row in run.file.rows] == ["device_lost"]
    assert [(one["part"], one["rows"]) for one in run.file.runs] == [("grid", 1)]
    assert "grid ends: a device was lost, and is not there again" in capsys.readouterr().err
    assert run.file.done == frozenset()
    again, seen = started("grid", 500.0)
    assert run_part(again) == 0
    assert len(seen) == 2
