"""A calibration of this machine's CPU ranks, in seconds, and what becomes of failures."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.core.cluster import parse_cluster
from tuner.errors import ProbeError
from workers import calibrate as program
from workers.calibrate import Options, StoppedError, calibrate
from workers.devices import DeviceLocks, devices_here
from workers.stop import StopRequest

FAILING = (
    "import json, os, pathlib, sys\n"
    "out, rank = pathlib.Path(sys.argv[1]), int(os.environ['RANK'])\n"
    "error = {'type': 'RuntimeError', 'message': 'no such device'}\n"
    "record = {'outcome': 'crashed', 'phase': 'copy elements=1', 'error': error}\n"
    "if rank: (out / f'rank-{rank:05d}.json').write_text(json.dumps(record))\n"
    "else: import time; time.sleep(20)\n"
    "sys.exit(10)\n"
)
"""Rank 1 fails; rank 0 waits for it."""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(folder=tmp_path / "folders", lock=tmp_path / "lock", quick=True)


@pytest.mark.parametrize(
    "name",
    ["cpu:2", *(pytest.param(name, marks=pytest.mark.long) for name in ("cpu:1", "2x1xcpu"))],
)
def test_cpu_ranks_are_calibrated(name: str, options: Options) -> None:
    found = calibrate(parse_cluster(name), StopRequest(), options=options)
    links = {"cpu:1": set(), "2x1xcpu": {"inter"}, "cpu:2": {"intra"}}
    assert set(found.links) == links[name]
    assert set(found.compute) == {"bf16", "fp32"}
    assert (found.memory_bytes_per_s.value or 0) > 0
    assert all((rates.flops_per_s.value or 0) > 0 for rates in found.compute.values())
    assert found.versions["torch"]
    assert (found.overlap_cost is None) is (name == "cpu:1")
    assert not list(options.folder.iterdir())
    assert DeviceLocks(options.lock, [d.name for d in devices_here()]).acquire()


def test_a_cluster_that_is_not_here_is_refused(options: Options) -> None:
    with pytest.raises(ProbeError, match="8xh100-80gb is asked about"):
        calibrate(parse_cluster("8xh100-80gb"), StopRequest(), options=options)


def failing_argv(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-c", FAILING, str(folder))


def test_the_failure_of_a_rank_is_told(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "probe_argv", failing_argv)
    with pytest.raises(ProbeError, match="rank 1 failed in copy elements=1: RuntimeError: no such"):
        calibrate(parse_cluster("cpu:2"), StopRequest(), options=options)
    assert not list(options.folder.iterdir())


def test_a_rank_without_a_record_is_told_with_its_last_words(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (sys.executable, "-c", "raise SystemExit('lost my way')")
    monkeypatch.setattr(program, "probe_argv", lambda folder: words)
    with pytest.raises(ProbeError, match="rank 0 ended with exit code 1: lost my way"):
        calibrate(parse_cluster("cpu:1"), StopRequest(), options=options)


def test_readings_that_are_none_are_told(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"outcome": "ok", "readings": [{"kind": "copy"}], "versions": {}}
    write = f"import sys; open(sys.argv[1] + '/rank-00000.json', 'w').write({json.dumps(record)!r})"
    argv: Callable[[Path], tuple[str, ...]] = lambda folder: (  # noqa: E731
        sys.executable, "-c", write, str(folder))  # fmt: skip
    monkeypatch.setattr(program, "probe_argv", argv)
    with pytest.raises(ProbeError, match="what the ranks timed cannot be used"):
        calibrate(parse_cluster("cpu:1"), StopRequest(), options=options)


def test_a_stop_ends_the_ranks_and_frees_the_machine(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(program, "probe_argv", lambda folder: sleep)
    read, write = os.pipe()
    stop = StopRequest(read)
    os.close(write)  # the command that started the worker is gone
    with pytest.raises(StoppedError, match="gone"):
        calibrate(parse_cluster("cpu:2"), stop, options=options)
    os.close(read)
    assert not list(options.folder.iterdir())
    assert DeviceLocks(options.lock, [d.name for d in devices_here()]).acquire()


def test_it_waits_for_its_turn(options: Options) -> None:
    turn = DeviceLocks(options.lock, [d.name for d in devices_here()])
    assert turn.acquire()
    stop = StopRequest()
    stop._note(signal.SIGTERM, None)
    with pytest.raises(StoppedError, match="SIGTERM"):
        calibrate(parse_cluster("cpu:1"), stop, options=options)
    turn.release()
