"""What the doctor says of a machine, its versions and the guard's verdicts."""

import json
from dataclasses import replace

from tests.records import VERSIONS
from tuner.client.doctor import CHECKED, GpuLook, diagnose
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import KNOBS
from tuner.core.measurement import CheckState, Outcome
from tuner.guard.check import GuardCheck
from tuner.guard.replica import replica_of, usual_cases


def verdicts():
    """The usual cases, all passed, with the local versions' suffixes that ranks report."""
    found = []
    for number, (question, settings) in enumerate(usual_cases()):
        replica = replica_of(question, settings)
        found.append(
            GuardCheck(
                key=str(number), family="f", result=CheckState.PASSED, outcome=Outcome.OK,
                model_type="llama", structure=replica.structure,
                settings=replica.settings.as_dict(),
                ranks=replica.cluster.world_size,
                versions=VERSIONS | {"torch": "2.13.0+cpu"}, date=f"2026-01-{number + 1:02}",
            )
        )  # fmt: skip
    return found


def look(given, versions=None, cluster="cpu:2"):
    def here():
        return parse_cluster(cluster)

    return diagnose(given, versions=VERSIONS if versions is None else versions, cluster=here)


# A replica has the smallest that do what larger ones do; none has stages of a pipeline.
SIZES = {"tp_size", "pp_size", "cp_size", "micro_batch_size", "gradient_accumulation_steps"}


def test_the_usual_cases_check_every_knob():
    assert CHECKED.keys() | SIZES == KNOBS.keys()
    assert not CHECKED.keys() & SIZES
    found = look(verdicts())
    assert all(check.verdict is CheckState.PASSED for check in found.guard)
    assert {check.knob for check in found.guard} == set(CHECKED)
    assert found.is_sound
    assert not any("no knob was checked" in problem.what for problem in found.problems)
    counts = {(check.knob, check.value): check.passed for check in found.guard}
    assert (counts["sharding", "ddp"], counts["sharding", "hybrid_shard"]) == (2, 3)
    assert counts["tp_recompute_allgather", "true"] == 2
    assert counts["sync_each_batch", "false"] == 4
    assert counts["cpu_offload", "true"] == counts["fused_loss", "true"] == 1
    assert {c.knob: c.left_open for c in found.guard if c.left_open} == {
        "cpu_offload": "not seen to act on a CPU, only to train the same"
    }
    assert json.loads(json.dumps(found.as_dict()))["sound"] is True


def test_a_failure_is_serious_and_comes_first():
    given = verdicts()
    given[1] = replace(
        given[1], result=CheckState.FAILED, outcome=Outcome.WRONG_RESULT, detail="loss is off"
    )
    found = look(given)
    assert not found.is_sound
    bad = {(c.knob, c.value) for c in found.guard if c.verdict is CheckState.FAILED}
    assert bad == {("sync_each_batch", "false")}  # it passed with true, and ddp did there
    assert found.problems[0].serious
    assert found.problems[0].what.startswith("sync_each_batch=false trains wrongly here: loss is")
    assert [problem.serious for problem in found.problems].count(True) == 1


def test_a_failure_that_blames_no_knob_names_the_settings():
    (first, *_) = verdicts()
    found = look([replace(first, result=CheckState.FAILED, outcome=Outcome.WRONG_RESULT)])
    assert not any(check.verdict is CheckState.FAILED for check in found.guard)
    assert not found.is_sound
    assert found.problems[0].what.startswith(f"{first.structure} trains wrongly here")
    assert not any("no knob was checked" in problem.what for problem in found.problems)


GPU = {
    "torch": "2.13.0+cu130", "cuda": "13.0", "driver": "580.95.05", "free_bytes": 150_000_000_000,
    "total_bytes": 151_000_000_000, "shm_bytes": 8 * 2**30,
}  # fmt: skip


def on_gpus(seen, cluster="2xh200-141gb"):
    return diagnose(
        verdicts(), versions=VERSIONS, cluster=lambda: parse_cluster(cluster), look=lambda: seen
    )


def test_a_small_dev_shm_is_named_with_several_gpus():
    small = GPU | {"shm_bytes": 64 * 2**20}
    [found] = on_gpus(GpuLook(gpus=(GPU, small))).problems
    assert "64 MiB" in found.what
    assert "--shm-size" in found.mend
    assert not found.serious
    assert on_gpus(GpuLook(gpus=(small,)), "1xh200-141gb").problems == ()


def test_what_processes_find_on_the_gpus():
    found = on_gpus(GpuLook(gpus=(GPU, GPU)))
    assert found.is_sound
    assert found.gpus == (GPU, GPU)
    assert json.loads(json.dumps(found.as_dict()))["gpus"][0]["driver"] == "580.95.05"


def test_gpus_that_cannot_be_used_are_a_serious_problem(monkeypatch):
    monkeypatch.setattr("tuner.machine.why_no_standin", lambda: "there is no nm")
    found = on_gpus(GpuLook(gpus=(GPU,), why_unusable="the NVIDIA driver 535 is too old"))
    assert not found.is_sound
    assert found.problems[0].what == "the NVIDIA driver 535 is too old"
    assert [one.possible for one in found.fidelities] == [True, False, False, False]
