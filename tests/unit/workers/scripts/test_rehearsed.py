"""What a rehearsal's record of a script's rank says of its settings."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Outcome
from tuner.core.script import read_script
from tuner.errors import ProbeError
from workers.launchers.base import Ended, Why
from workers.scripts.probe import ScriptRun, rehearsed

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
