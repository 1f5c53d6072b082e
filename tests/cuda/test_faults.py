"""Faults of a GPU: the outcome, the phase, and that the next probe runs where it should."""

import os
from pathlib import Path

import pytest

from tests.cuda.probing import LLAMA, prober, spec
from tuner.core.measurement import Outcome
from tuner.errors import ProbeError

MODEL = LLAMA | {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 704}
MIB = 2**20


@pytest.fixture
def folder(tmp_path):
    """Where probes are; at the test's end no process works for one."""
    yield tmp_path
    assert not list(_processes_of(tmp_path))


def _processes_of(folder):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue  # it has ended
        if str(folder) in words and int(process.name) != os.getpid():
            yield words


def small(ranks=1, **choices):
    """A spec of a model whose step takes a moment."""
    return spec(ranks, **{"model": MODEL, "count": 1, "sequence_length": 256, **choices})


def one(values, folder):
    """The measurement of one probe in processes of its own."""
    with prober(folder, warm=False) as probe:
        return probe(values).measurement


WIDE = small(model=MODEL | {"num_hidden_layers": 8}, micro=16, tracked_steps=1)
"""Most memory is in use in backward."""
LARGE = small(model=MODEL | {"vocab_size": 256_000}, micro=1, sequence_length=8, tracked_steps=1)
"""Most memory is in use as the optimizer steps for the first time."""


def test_each_phase_can_run_out_of_memory(gpus, folder):
    gpus(1)
    with prober(folder) as probe:
        wide, large = (probe(values).measurement for values in (WIDE, LARGE))
        of_wide, of_large = wide.memory.by_phase, large.memory.by_phase
        for phase, values, limit in (
            ("build", WIDE, of_wide["build"] // 2),
            ("forward", WIDE, (of_wide["build"] + of_wide["forward"]) // 2),
            ("backward", WIDE, of_wide["backward"] - 16 * MIB),
            ("optimizer", LARGE, (of_large["backward"] + of_large["optimizer"]) // 2),
        ):
            short = probe({**values, "memory_limit_bytes": limit}).measurement
            assert short.outcome is Outcome.OOM, short.detail
            assert (short.oom.phase, short.oom.limit_bytes) == (phase, limit)
            assert short.oom.requested_bytes > 0
            assert short.oom.allocated_bytes <= short.oom.reserved_bytes <= limit
        again = probe(WIDE).measurement
        assert again.outcome is Outcome.OK, again.detail
        assert again.memory.allocated_bytes == wide.memory.allocated_bytes


def test_a_host_that_cannot_pin_more_is_what_runs_out(gpus, folder):
    """Two layers' inputs of 2 MiB each; the device has room."""
    gpus(1, host_mib=3)
    short = one(small(micro=16, activation_checkpointing="offload"), folder)
    assert short.outcome is Outcome.HOST_OOM, short.detail
    assert "no 2097152 bytes of pinned host memory" in short.detail


@pytest.mark.parametrize("nvml", ["processes", "refuses", ""])
def test_the_device_itself_runs_out(gpus, folder, nvml):
    gpus(1, mib=700, nvml=nvml)  # of which the context has 512
    short = one(WIDE, folder)
    assert short.outcome is Outcome.OOM, short.detail
    assert short.oom.phase == "forward"
    assert short.oom.allocated_bytes < 188 * MIB


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        ("", 0),
        ("build", 10),
        ("forward", 0),
        ("forward", 30),
        ("backward", 0),
        ("backward", 30),
        ("optimizer", 0),
        ("optimizer", 5),
        ("time", 0),
        ("time", 100),
        ("finish", 0),
        ("finish", 1),
    ],
)
def test_a_device_is_lost(gpus, folder, phase, after):
    gpus(1, fail=719, fail_phase=phase, fail_after=after)
    lost = one(small(), folder)
    assert lost.outcome is Outcome.DEVICE_LOST, lost.detail
    assert f"in {phase or 'start'}" in lost.detail
    assert "unspecified launch failure" in lost.detail


def test_after_a_lost_device_the_next_probe_runs_only_where_it_is_there(gpus, folder):
    gpus(2, fail=214, fail_phase="backward", fail_after=20)
    with prober(folder) as probe:
        lost = probe(small(2, sharding="full_shard")).measurement
        assert lost.outcome is Outcome.DEVICE_LOST, lost.detail
        gpus(2, fail=46)
        with pytest.raises(ProbeError, match="is not there again"):
            probe(small(2))
        gpus(2)
        again = probe(small(2)).measurement
        assert again.outcome is Outcome.OK, again.detail


def test_a_rank_is_killed_in_mid_step(gpus, folder):
    gpus(2, fail="kill", fail_phase="backward", fail_after=20, fail_device=1)
    with prober(folder) as probe:
        killed = probe(small(2, sharding="full_shard")).measurement
        assert killed.outcome is Outcome.CRASHED, killed.detail
        assert "rank 1" in killed.detail
        assert not list(_processes_of(folder))
        gpus(2)
        again = probe(small(2, sharding="full_shard")).measurement
        assert again.outcome is Outcome.OK, again.detail


def test_a_communicator_does_not_fit(gpus, folder):
    gpus(2, nccl_mib=150_000)
    short = one(small(2), folder)
    assert short.outcome is Outcome.OOM, short.detail
    assert (short.oom.phase, short.oom.requested_bytes) == ("start", 6 * MIB)


def test_the_driver_is_too_old(gpus, folder):
    gpus(1, driver=12040)
    old = one(small(), folder)
    assert old.outcome is Outcome.CRASHED
    assert "in start" in old.detail
    assert "driver on your system is too old (found version 12040)" in old.detail
