"""Ranks look at their GPUs before probes: what is wrong with a machine is no probe's outcome."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.cuda.probing import spec
from tuner.core.measurement import Outcome
from tuner.errors import ProbeError, UsageError
from tuner.machine import visible_gpus
from workers.measuring.ranks import CheckedDevices, Kind, WarmRanks

SHM = (
    "Error while creating shared memory segment /dev/shm/nccl-aBcDeF (size 9637888), error: No"
    " space left on device (28)"
)
"""NCCL's words in a container with docker's usual 64 MiB."""


def kind(ranks):
    return Kind(ranks=ranks, world_size=ranks, device="cuda")


def pause(seconds):
    time.sleep(seconds)
    return ""


@pytest.fixture
def ranks(tmp_path):
    """Ranks that look at their GPUs first."""

    def make(**options):
        values = {"folder": tmp_path, "checked": CheckedDevices(), **options}
        return WarmRanks(**values)

    return make


def probe(ranks, count, **choices):
    values = spec(count, **choices)
    return ranks.measure(kind(count), values, deadline_s=300.0, pause=pause)


def test_a_look_leaves_nothing_behind_for_the_first_probe(gpus, ranks):
    gpus(2)
    with ranks() as looks, ranks(checked=None) as does_not:
        found = [probe(each, 2, sharding="full_shard").measurement for each in (looks, does_not)]
    assert [one.outcome for one in found] == [Outcome.OK] * 2, found[0].detail
    assert found[0].memory == found[1].memory


def look(ranks, count):
    with ranks:
        found = ranks.ask(kind(count), {"check": "cuda"}, pause)
    assert found is not None
    return found


def test_what_a_look_finds_of_gpus_that_are_well(gpus, ranks):
    gpus(2, mib=40_000)
    found = look(ranks(), 2)
    assert found.why_unusable == ""
    first, second = (record["hardware"] for record in found.records)
    assert first["total_bytes"] == second["total_bytes"] == 40_000 * 2**20
    assert 0 < first["free_bytes"] <= first["total_bytes"]
    assert first["cuda"].startswith("13.")
    assert first["driver"] == "580.95.05"
    assert first["shm_bytes"] > 0


def test_a_driver_that_is_too_old_is_named_and_no_probe_is_run(gpus, ranks):
    gpus(1, driver=12040)
    with ranks() as old, pytest.raises(ProbeError) as raised:
        probe(old, 1)
    why = str(raised.value)
    assert "550.90.07 is too old" in why
    assert "580.65.06" in why
    assert "CUDA 12" in why


def test_a_busy_gpu_is_named_with_who_holds_it(gpus, ranks):
    gpus(2, tenant_mib="0,60000")
    why = look(ranks(), 2).why_unusable
    assert "GPU 1 is busy" in why
    assert "4242 (python3)" in why
    held = float(why.split("busy: ")[1].split(" GiB")[0])
    assert 58.0 < held < 59.0  # 60,000 MiB, less what its own context may take
    gpus(1, tenant_mib=900)  # as a desktop
    assert look(ranks(), 1).why_unusable == ""


def test_ranks_that_cannot_all_reduce_say_why(gpus, ranks):
    gpus(2, nccl_fail=SHM)
    why = look(ranks(), 2).why_unusable
    assert "all-reduce over NCCL" in why
    assert SHM in why
    assert look(ranks(), 1).why_unusable == ""  # one alone does not


def test_memory_that_ran_out_under_a_tenant_is_not_believed(gpus, ranks):
    checked = CheckedDevices()
    checked[kind(1).devices] = time.monotonic()  # it came afterwards
    gpus(1, mib=20_000, tenant_mib=17_000)
    with ranks(checked=checked) as shared, pytest.raises(ProbeError, match="GPU 0 is busy"):
        probe(shared, 1, micro=8)
    gpus(1, mib=3000)
    with ranks(checked=checked) as alone:
        assert probe(alone, 1, micro=8).measurement.outcome is Outcome.OOM
        assert alone.alive  # the ranks that looked are there for the next probe
    gpus(1, mib=20_000)
    with ranks(checked=checked) as roomy:
        assert probe(roomy, 1, micro=8).measurement.outcome is Outcome.OK


SUGGEST = (
    "suggest", "--model", "stories15m", "--global-batch-size", "4", "--sequence-length", "64",
    "--cluster", "local", "--fidelity", "measured", "--knob", "sharding=ddp", "--knob", "tp_size=1",
    "--json",
)  # fmt: skip


def tuner(tmp_path, *arguments):
    return subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import sys; from tuner.cli import main; sys.exit(main())",
            *arguments,
        ],
        env={**os.environ, "TUNER_DB": f"sqlite:///{tmp_path}/tuner.db"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_study_fails_with_what_is_wrong_and_has_no_probe_of_it(gpus, tmp_path):
    gpus(2, driver=12020)
    done = tuner(tmp_path, *SUGGEST)
    assert done.returncode == 1
    assert "535.183.01 is too old" in done.stderr
    (study,) = json.loads(tuner(tmp_path, "studies", "list", "--json").stdout)["studies"]
    assert study["state"] == "failed"
    assert "too old" in study["reason"]
    assert study["probes"] == {"cancelled": 1}  # what was queued; nothing was measured


def test_the_doctor_shows_what_processes_find(gpus, tmp_path):
    gpus(2, tenant_mib="0,60000")
    done = tuner(tmp_path, "doctor", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["device"] == "2xh200"
    assert [gpu["driver"] for gpu in found["gpus"]] == ["580.95.05"] * 2
    (serious,) = (problem for problem in found["problems"] if problem["serious"])
    assert "GPU 1 is busy" in serious["what"]


def test_a_gpu_that_is_cut_into_slices_is_no_whole_one(gpus):
    gpus(1, mig=1)
    with pytest.raises(UsageError, match=r"1g\.18gb"):
        visible_gpus()
    with pytest.raises(UsageError, match=r"1g\.18gb of NVIDIA H200"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-00000000-1111-2222-3333-444444444444"})


def test_a_driver_that_fails_is_no_machine_without_gpus(gpus, tmp_path):
    words = "Failed to initialize NVML: Driver/library version mismatch"
    (tmp_path / "failure.txt").write_text(f"18\n{words}\n")
    gpus(1, smi=tmp_path)
    with pytest.raises(UsageError, match=words):
        visible_gpus()
