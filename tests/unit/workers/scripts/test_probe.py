"""What a rehearsal's record of a script's rank says of its settings, and counts of its steps."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.made import ok
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.script import read_script
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.errors import ProbeError
from workers.launchers.base import Ended, Why
from workers.scripts.probe import ScriptRun, check_script_probe, rehearsed

STEP = {
    "step": 1, "allocated_bytes": 900, "reserved_bytes": 1000, "fragmentation_bytes": 100,
    "by_phase": {"forward": 700, "backward": 900},
}  # fmt: skip
RECORD = {
    "rank": 0, "outcome": "ok", "detail": "2 steps", "at": "", "moments": [],
    "steps": [STEP, {**STEP, "step": 2, "allocated_bytes": 800}],
    "memory": {"allocated_bytes": 950, "reserved_bytes": 1000, "beside_bytes": 50,
               "device_bytes": 5000, "allocation_retries": 1},
}  # fmt: skip


def test_memory_is_the_allocators_and_time_is_none():
    found = rehearsed(RECORD, wall_s=3.0)
    assert found.outcome is Outcome.OK
    memory = found.memory
    assert (memory.allocated_bytes, memory.allocated_low_bytes) == (950, 800)
    assert (memory.overhead_bytes, memory.device_bytes) == (50, 1050)
    assert memory.by_phase == {"forward": 700, "backward": 900}
    assert (found.step_times_s, found.device_s, found.wall_s) == ({}, 0.0, 3.0)


def test_out_of_memory_names_the_line():
    moments = [{"phase": "backward", "bytes": 4000, "step": 1, "lines": []}]
    words = "OutOfMemoryError: CUDA out of memory."
    record = {**RECORD, "outcome": "oom", "steps": [], "at": "train.py:9 loss.backward()"}
    found = rehearsed({**record, "detail": words, "moments": moments}, wall_s=1.0)
    assert found.outcome is Outcome.OOM
    assert found.detail == f"rank 0 at train.py:9 loss.backward(): {words}"
    assert (found.oom.phase, found.oom.needed_bytes, found.oom.limit_bytes) == (
        "backward", 950, 5000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "steps", "expected"),
    [
        ("failed", [], Outcome.CRASHED),
        ("failed", [STEP], Outcome.CRASHED),
        ("ok", [], Outcome.CRASHED),
        ("time", [], Outcome.TIMEOUT),
        ("time", [STEP], Outcome.OK),
    ],
)
def test_how_it_ended(outcome, steps, expected):
    found = rehearsed({**RECORD, "outcome": outcome, "steps": steps}, wall_s=1.0)
    assert found.outcome is expected


def test_what_is_started_and_what_it_is_told(question, tmp_path):
    (tmp_path / "train.py").write_text("steps\n")
    script = read_script(
        "train.py",
        arguments=("--micro", "{micro_batch_size}"),
        environment=("MICRO={micro_batch_size}",),
        folder=tmp_path,
    )
    jobs = []

    def start(job):
        jobs.append(job)
        order = Path(job.argv[job.argv.index("--order") + 1])
        jobs.append(json.loads(order.read_text()))
        (order.parent / "out.json").write_text(json.dumps(answer))
        ended = Ended(why=Why.ENDED, ranks=(), wall_s=4.0)
        return SimpleNamespace(poll=lambda: ended)

    launcher = SimpleNamespace(start=start)
    run = ScriptRun(launcher=launcher, folder=tmp_path, visible=(), deadline_s=9.0)
    asked = replace(question, cluster=parse_cluster("2x8xh100-80gb"), script=script)
    settings = Settings(micro_batch_size=2)
    answer = {"ranks": [RECORD]}
    assert run.rehearse(asked, settings, lambda _: "").memory.allocated_bytes == 950
    job, order = jobs
    assert (job.ranks, job.nodes, job.device) == (1, 1, "cuda")
    assert order["command"][0] == "torchrun"
    assert order["command"][-3:] == [script.path, "--micro", "2"]
    assert order["environment"] == {"MICRO": "2"}
    assert (order["where"], order["nodes"], order["gpus_per_node"]) == (str(tmp_path), 2, 8)
    assert (order["network"], order["writes"], order["ranks"]) == (False, False, [0])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    answer = {"error": "this Python has no CUDA build"}
    with pytest.raises(ProbeError, match="no CUDA build"):
        run.rehearse(asked, settings, lambda _: "")
    (tmp_path / "train.py").write_text("other\n")
    with pytest.raises(ProbeError, match="was edited"):
        run.rehearse(asked, settings, lambda _: "")


TWO = Settings(micro_batch_size=1, gradient_accumulation_steps=2)
ONE = Settings(micro_batch_size=2, gradient_accumulation_steps=1)


def counted(passes):
    return replace(ok(0.1, 1.0), tracked_accumulation=passes)


def study(question, *probes):
    made = (
        Probe(
            id=number,
            request=ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED),
            state=ProbeState.DONE,
            measurement=counted(passes),
        )
        for number, (settings, passes) in enumerate(probes, start=1)
    )
    return Study(
        id="st-1", question=question, limits=Limits(), state=StudyState.RUNNING, probes=tuple(made)
    )


def test_as_many_passes_as_micro_batches_are_well(question):
    for passes in (2, 4, 0):  # 4: a script with two passes for each; 0: they were not counted
        assert check_script_probe(study(question), TWO, counted(passes)) == counted(passes)


def test_too_few_passes(question):
    found = check_script_probe(study(question), TWO, counted(1))
    assert found.outcome is Outcome.KNOB_INACTIVE
    assert found.detail.startswith("gradient_accumulation_steps=2 did not act: 1 backward")


def test_other_passes_for_each_than_before(question):
    before = study(question, (TWO, 2))
    assert check_script_probe(before, ONE, counted(1)).outcome is Outcome.OK
    found = check_script_probe(before, ONE, counted(2))
    assert found.outcome is Outcome.KNOB_INACTIVE
    assert "2 for each micro-batch, and 1 for each in probe #1" in found.detail


def test_what_did_not_run_is_left_as_it_is(question):
    failed = Measurement(outcome=Outcome.OOM, tracked_accumulation=1)
    assert check_script_probe(study(question), TWO, failed) is failed
