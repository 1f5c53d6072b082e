"""What a script's probe on two nodes does by every launcher. Tests import these, with fixtures:

- ``launcher``: of the nodes; ``nodes``: machines that it takes them for;
- ``supervisor``: source of Python that sets ``launcher`` in a process of its own.

Each node runs a stand-in for torchrun, whose ranks have no torch.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.workers.scripted import SETTINGS, as_torchrun, asking_script, left, waiting
from tests.questions import question_about
from tuner.core.measurement import Outcome
from tuner.errors import ProbeError
from workers.scripts.probe import ScriptRun

SUPERVISOR = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.process.workers.scripted import SETTINGS, waiting
from tests.process.workers.scripts.contract import probing
from tuner.core.study import Question
import json
{launcher}
folder = Path(sys.argv[1])
question = Question.from_dict(json.loads((folder / "question.json").read_text()))
probing(launcher, {nodes}, folder).measure(question, SETTINGS, waiting)
"""


def probing(launcher, nodes, folder):
    return ScriptRun(
        launcher=launcher,
        folder=folder / "probes",
        visible=(),
        deadline_s=240.0,
        nodes=nodes,
        as_run=as_torchrun,
        peer_grace_s=1.0,
    )


@pytest.fixture
def on_nodes(tmp_path):
    """``on_nodes(step, whole=...)``: a question about a script on two nodes of two ranks each."""
    asked = question_about("stories15m", "2x2xcpu", tokens=64, batch=8)
    return lambda step="pass", **more: asking_script(asked, tmp_path, step, **more)


@pytest.fixture
def run(launcher, nodes, tmp_path):
    """``run(question)``: what its script's probe finds; nothing of it is left then."""

    def measure(question, pause=waiting):
        try:
            return probing(launcher, nodes, tmp_path).measure(question, SETTINGS, pause)
        finally:
            assert not list((tmp_path / "probes").iterdir())
            assert not left(tmp_path)

    return measure


PLACED = """
    import os, sys, time
    from pathlib import Path
    from tuner.integrations import report_step
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "OWN", "RAY_AUTH_TOKEN", "TUNER_DB")
    place = Path(sys.argv[2]) / os.environ["RANK"]
    place.write_text(" ".join(os.environ.get(name, "-") for name in names))
    while True:
        time.sleep(0.01)
        report_step(loss=1.0, sequences=int(sys.argv[1]))
"""


def test_ranks_of_all_nodes_are_one_measurement(on_nodes, run, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_DB", "secret")
    (tmp_path / "seen").mkdir()
    words = {"arguments": ("{micro_batch_size}", str(tmp_path / "seen"))}
    found = run(on_nodes(whole=PLACED, environment=["OWN=of {world_size}"], **words))
    assert found.outcome is Outcome.OK, found
    assert len(found.memory.per_rank_bytes) == 4
    assert len(found.step_times_s[1]) == 10
    assert found.device_s == pytest.approx(4 * found.wall_s)
    seen = [(tmp_path / "seen" / str(rank)).read_text() for rank in range(4)]
    assert seen == [f"{rank} {rank % 2} {rank // 2} 4 of 4 - -" for rank in range(4)]


def test_a_rank_that_fails_is_named_and_ends_the_others(on_nodes, run):
    found = run(on_nodes("if rank == 3: raise ValueError('no')\n        time.sleep(1000)"))
    assert found.outcome is Outcome.CRASHED
    assert found.detail.startswith("rank 3 in step: ValueError: no")
    assert "ValueError: no" in found.log_tails[2], "of its node's first rank"


def test_a_node_that_cannot_run_it_is_named(on_nodes, run):
    fails = """
        import os, sys, time
        if os.environ["GROUP_RANK"] == "1":
            sys.exit("no such library")
        from tuner.integrations import report_step
        time.sleep(1000)
        """
    said = r"train.py ended on node 1 of 2 with exit code 1 before .*\.\.\.no such library"
    with pytest.raises(ProbeError, match=said):
        run(on_nodes(whole=fails))


def test_a_probe_that_is_given_up_leaves_nothing(on_nodes, run, tmp_path):
    def pause(seconds):
        waiting(seconds)
        return "enough" if len(list(tmp_path.glob("probes/*/seen-*"))) == 4 else ""

    assert run(on_nodes("time.sleep(1000)"), pause).outcome is Outcome.CANCELLED


def test_nothing_is_left_when_the_worker_is_killed(
    on_nodes, supervisor, nodes, tmp_path, eventually
):
    question = on_nodes("time.sleep(1000 if step else 0)")
    (tmp_path / "question.json").write_text(json.dumps(question.as_dict()))
    root = str(Path(__file__).parents[4])
    source = SUPERVISOR.format(root=root, launcher=supervisor, nodes=nodes)
    worker = subprocess.Popen([sys.executable, "-P", "-c", source, str(tmp_path)])
    try:
        eventually(lambda: len(list(tmp_path.glob("probes/*/seen-*"))) == 4, 120.0)
        worker.kill()
        worker.wait()
        eventually(lambda: not left(tmp_path))
    finally:
        worker.kill()
        worker.wait()
