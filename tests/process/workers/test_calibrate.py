"""A calibration of this machine's CPU ranks, in seconds, and what becomes of failures."""

import os
import sys

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
    "record = {'outcome': 'crashed', 'phase': 'copy elements=1', 'error': error, 'ended_at': 1.0,"
    " 'hardware': {}}\n"
    "if rank: (out / '00000001' / f'rank-{rank:05d}.json').write_text(json.dumps(record))\n"
    "else: import time; time.sleep(20)\n"
    "sys.exit(10)\n"
)
"""Rank 1 fails; rank 0 waits for it."""


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Small cases, for which a busy machine has time enough."""
    monkeypatch.setattr(program, "BUDGET_S", 900.0)
    monkeypatch.setattr(program, "DEADLINE_S", 1000.0)
    return Options(folder=tmp_path / "folders", lock=tmp_path / "lock", quick=True)


@pytest.mark.parametrize(
    "name",
    ["cpu:2", *(pytest.param(name, marks=pytest.mark.long) for name in ("cpu:1", "2x1xcpu"))],
)
@pytest.mark.usefixtures("preloading")
def test_cpu_ranks_are_calibrated(name, options):
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


def test_a_cluster_that_is_not_here_is_refused(options):
    with pytest.raises(ProbeError, match="8xh100-80gb is asked about"):
        calibrate(parse_cluster("8xh100-80gb"), StopRequest(), options=options)


def failing_argv(folder):
    return (sys.executable, "-c", FAILING, str(folder))


def test_the_failure_of_a_rank_is_told(options, monkeypatch):
    monkeypatch.setattr(program, "series_argv", failing_argv)
    with pytest.raises(ProbeError, match=r"RuntimeError in copy elements=1: no such .* \(rank 1\)"):
        calibrate(parse_cluster("cpu:2"), StopRequest(), options=options)
    assert not list(options.folder.iterdir())


def test_a_stop_ends_the_ranks_and_frees_the_machine(options, monkeypatch):
    sleep = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(program, "series_argv", lambda folder: sleep)
    read, write = os.pipe()
    stop = StopRequest(read)
    os.close(write)  # the command that started the worker is gone
    with pytest.raises(StoppedError, match="gone"):
        calibrate(parse_cluster("cpu:2"), stop, options=options)
    os.close(read)
    assert not list(options.folder.iterdir())
    assert DeviceLocks(options.lock, [d.name for d in devices_here()]).acquire()
