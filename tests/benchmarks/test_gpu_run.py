"""Parts end in their time, and go on where they stopped."""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tuner.core.cluster import Device
from tuner.core.measurement import Measurement, Outcome
from tuner.errors import ProbeError


@pytest.fixture
def started(benchmark, tmp_path, monkeypatch):
    """A run of a part, with a stand-in for probing."""
    program, place = benchmark("gpu.program"), benchmark("gpu.place")
    monkeypatch.setattr(program, "why_not_here", lambda found: "")
    here = place.Place(device=Device.CUDA, gpu="h200", title="x", reduced=True)
    file = benchmark("gpu.file").ResultFile(tmp_path / "x.json", "h200", "x")

    def make(part: str, left_s: float, outcome: Outcome = Outcome.CRASHED):
        seen: list[str] = []

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


def test_a_part_that_is_done_is_not_run_again(started, run_part) -> None:
    run, seen = started("grid", 100.0)
    assert run_part(run) == 0
    assert len(seen) == 2
    assert run_part(run) == 0
    assert len(seen) == 2
    assert [one["rows"] for one in run.file.runs] == [2, 0]


def test_no_case_is_started_that_cannot_end_in_time(started, run_part) -> None:
    run, seen = started("grid", 10.0)
    run.file.add({"key": "earlier", "part": "grid", "model": "tiny", "outcome": "ok",
                  "case_s": 9.0})  # fmt: skip
    assert run_part(run) == 2
    assert seen == []
    longer, seen = started("grid", 100.0)
    assert run_part(longer) == 0
    assert len(seen) == 2


def test_the_end_of_time_says_nothing_of_a_case(started, run_part) -> None:
    run, seen = started("grid", 100.0, Outcome.TIMEOUT)  # less than a probe may take
    assert run_part(run) == 2
    assert len(seen) == 1
    assert run.file.rows == []


def test_a_probe_that_hangs_is_kept_as_such(started, run_part) -> None:
    run, _ = started("grid", 500.0, Outcome.TIMEOUT)
    assert run_part(run) == 0
    assert {row["outcome"] for row in run.file.rows} == {"timeout"}


def test_a_device_that_stays_lost_ends_the_part_and_its_case_is_run_again(
    started, run_part, capsys
) -> None:
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


def test_one_process_is_kept_warm_for_all_cases_of_that_way(started, run_part) -> None:
    run, seen = started("warm", 100.0)
    assert run_part(run) == 0
    assert [key.split()[1] for key in seen] == ["cold", "cold", "warm", "warm"]


def test_dry_runs_that_do_not_end_in_time_leave_the_case_for_the_next_run(
    started, run_part, benchmark
) -> None:
    from concurrent.futures import Future

    class Never:
        def of(self, found):
            return Future()

    for left_s in (0.5, 5.0, 60.0):  # until that is enough to start a case
        run, seen = started("memory", left_s)
        assert run_part(replace(run, dry_runs=Never())) == 2
        assert run.file.rows == []
        if seen:
            break
    assert len(seen) == 1


def test_rates_are_measured_once_for_the_part_about_time(
    started, run_part, benchmark, monkeypatch
) -> None:
    asked = []

    class Rates:
        def computing_s(self, case):
            return 2.0

        def as_dict(self):
            return {"flops_per_s": 1e12}

    def calibration(place, kept):
        asked.append(kept)
        return Rates()

    monkeypatch.setattr(benchmark("gpu.program"), "calibration", calibration)
    run, _ = started("grid", 100.0)
    run_part(run)
    assert asked == []
    run, _ = started("time", 100.0)
    assert run_part(run) == 0
    assert asked == [None]
    assert run.file.rates == {"flops_per_s": 1e12}
    assert [row["computing"]["calibrated_s"] for row in run.file.rows if row["part"] == "time"] == [
        2.0
    ]
    run.file.rows.clear()
    assert run_part(run) == 0
    assert asked == [None, {"flops_per_s": 1e12}]
    run.file.rows.clear()
    run.file.keep_rates({"format": 0})  # of another version: what is measured anew is kept
    assert run_part(run) == 0
    assert asked[-1] == {"format": 0}
    assert run.file.rates == {"flops_per_s": 1e12}


def test_without_rates_the_part_about_time_goes_on(
    started, run_part, benchmark, monkeypatch, capsys
) -> None:
    def calibration(place, kept):
        raise ProbeError("rank 0 ended with exit code 1")

    monkeypatch.setattr(benchmark("gpu.program"), "calibration", calibration)
    run, _ = started("time", 100.0)
    assert run_part(run) == 0
    assert run.file.rates is None
    assert run.file.rows
    assert not any((row["computing"] or {}).get("calibrated_s") for row in run.file.rows)
    assert "no measured rates: rank 0 ended" in capsys.readouterr().err


def test_another_run_goes_on_from_the_file_of_the_one_before(started, run_part) -> None:
    """The first run's time is up in its second case; the file is opened again for the next."""
    run, _ = started("grid", 500.0)
    usual = run.prober

    @contextmanager
    def prober(way):
        done = []

        def probe(found, deadline_s):
            if done:
                raise TimeoutError
            done.append(found.key)
            return tried(found, deadline_s)

        with usual(way) as tried:
            yield probe

    assert run_part(replace(run, prober=prober)) == 1
    first = list(run.file.rows)
    assert len(first) == 1
    again, seen = started("grid", 500.0)
    assert again.file.rows == first
    assert run_part(again) == 0
    assert len(seen) == 1
    assert first[0]["key"] not in seen
    assert again.file.rows[0] == first[0]
    assert [one["rows"] for one in again.file.runs] == [1, 1]
