"""The lines of a first look at a GPU, and the exit code that they come to."""

from dataclasses import replace

import pytest

from tests.benchmarks.gpu_rows import MIB, measurement
from tuner.core.measurement import Measurement, Outcome, OutOfMemory

pytestmark = pytest.mark.long

LOOK = {
    "torch": "2.13.0+cu130", "cuda": "13.0", "driver": "580.65.06", "device": "NVIDIA H200",
    "free_bytes": 139_000 * MIB, "total_bytes": 139_500 * MIB,
}  # fmt: skip
CAP = 900 * MIB
SHORT = OutOfMemory(
    rank=0, phase="forward", requested_bytes=100 * MIB, allocated_bytes=850 * MIB,
    reserved_bytes=880 * MIB, limit_bytes=CAP,
)  # fmt: skip


def ran(mib, **memory):
    """A probe that ended well; ``memory`` differs."""
    found = measurement(mib, [0.1], 0.0, 5.0)
    found["memory"] |= memory
    return Measurement.from_dict(found)


@pytest.fixture
def smoke(benchmark):
    return benchmark("gpu.smoke_lines")


@pytest.fixture
def found(smoke):
    """Of a sound GPU."""
    peaks = {
        "ddp, cold": 2000, "full_shard, cold": 1000, "fp32, grouped queries": 3000,
        "ddp, warm": 2000, "full_shard, warm": 1000, "checkpointing": 700, "adamw_8bit": 1500,
        "full_shard, after": 1000,
    }  # fmt: skip
    probes = {name: smoke.Tried(measurement=ran(mib)) for name, mib in peaks.items()}
    capped = Measurement(outcome=Outcome.OOM, oom=SHORT)
    probes["capped"] = smoke.Tried(measurement=capped)
    return smoke.Found(look=LOOK, probes=probes, cap_bytes=CAP, wall_s=90.0)


@pytest.fixture
def changed(smoke, found):
    """What is found where one probe is another; lines that are not ok, by check."""

    def judge(**measurements):
        named = {name.replace("__", ", "): one for name, one in measurements.items()}
        probes = {**found.probes, **{n: smoke.Tried(measurement=m) for n, m in named.items()}}
        lines = smoke.lines(replace(found, probes=probes))
        return {
            line.check: (str(line.verdict), line.figure)
            for line in lines
            if line.verdict in (smoke.Verdict.FAIL, smoke.Verdict.OFF)
        }

    return judge


def test_a_sound_gpu_fails_nothing(changed):
    assert changed() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit_bytes": CAP + 1},  # another cap
        {"allocated_bytes": CAP + 1, "reserved_bytes": CAP + 1},  # that was not kept
        {"requested_bytes": 1, "reserved_bytes": 851 * MIB},  # there was room
        {"requested_bytes": 0},  # nothing is known of what was asked for
    ],
)
def test_a_cap_that_does_not_add_up_fails(changed, wrong):
    oom = Measurement(outcome=Outcome.OOM, oom=replace(SHORT, **wrong))
    assert changed(capped=oom)["cap on memory"][0] == "FAIL"


def test_gpus_that_cannot_be_used_fail_and_nothing_else_is_told(smoke):
    found = smoke.Found(look={"torch": "2.13.0"}, why_unusable="the driver is too old", wall_s=9.0)
    first, last = smoke.lines(found)
    assert (first.verdict, last.verdict) == (smoke.Verdict.FAIL, smoke.Verdict.OK)
    assert first.figure == "torch 2.13.0, CUDA none; the driver is too old"
