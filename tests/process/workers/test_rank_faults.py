"""Real ranks, of which one fails in mid-step while the other waits for it in a collective."""

import sys
import time

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Outcome
from tuner.dryrun.plan import rank_spec
from workers.launchers.local import series_argv
from workers.measuring.ranks import Kind, WarmRanks

TWO = Kind(ranks=2, world_size=2, device="cpu")
BREAKS = """
import os, signal, time, torch
from workers.probe import run
from workers.probe.__main__ import main
from workers.probe.tracker import MemoryLimitError
usual, steps = run.optimizer_step, []
def lose_device():
    error = torch.AcceleratorError("CUDA error: unspecified launch failure")
    error.error_code = 719
    raise error
def run_out():
    raise MemoryLimitError(requested_bytes=2**30, allocated_bytes=2**20, limit_bytes=2**29)
def hang():
    time.sleep(3600)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def step(stack, batches, enter, **more):
    steps.append(None)
    def breaking(name):
        enter(name)
        if os.environ["RANK"] == "1" and len(steps) == 2 and name == "backward":
            {fault}()
    return usual(stack, batches, breaking, **more)
run.optimizer_step = step
main()
"""
"""The probe program, whose second rank fails in the second step's backward; the first waits."""


def in_place(argv, text):
    """``argv`` of ``python -P -m workers.probe``, of a changed program."""
    return (sys.executable, "-P", "-c", text, *argv[4:])


@pytest.fixture
def spec(question):
    settings = parse_settings("sharding=full_shard,micro_batch_size=2")
    return {
        **rank_spec(question.workload, settings, parse_cluster("cpu:2")),
        "memory_limit_bytes": None,
        "seed": 0,
        "accumulation_counts": [1],
        "warmup_steps": 3,
        "tracked_steps": 2,
        "measured_steps": 2,
        "minimum_steps": 2,
        "time_budget_s": 5.0,
        "fidelity": "measured",
    }


def measure(ranks, spec, deadline_s=600.0):
    return ranks.measure(
        TWO, spec, deadline_s=deadline_s, pause=lambda seconds: time.sleep(seconds) or ""
    )


@pytest.mark.parametrize(
    ("fault", "deadline_s", "outcome", "detail"),
    [
        ("run_out", 600.0, Outcome.OOM, "rank 1 ran out of memory in backward: 1.00 GiB more"),
        pytest.param("hang", 20.0, Outcome.TIMEOUT, "20 s", marks=pytest.mark.long),
        pytest.param(
            "die", 600.0, Outcome.CRASHED, "rank 1 was ended by SIGKILL", marks=pytest.mark.long
        ),
    ],
)
def test_a_rank_that_fails_while_the_other_waits(
    tmp_path, spec, alive, preloaded, fault, deadline_s, outcome, detail
):
    def argv(place):
        return preloaded(in_place(series_argv(place), BREAKS.format(fault=fault)))

    with WarmRanks(argv=argv, folder=tmp_path) as ranks:
        found = measure(ranks, spec, deadline_s).measurement
        assert found.outcome is outcome, found.detail
        assert detail in found.detail
        assert not ranks.alive
        assert not alive(str(tmp_path))
