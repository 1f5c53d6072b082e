"""A script's probes on two ranks: a stand-in for torchrun, and scripts without torch."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.process.workers.scripted import SETTINGS, as_torchrun, asking_script, left, waiting
from tuner.core.measurement import Outcome
from tuner.errors import ProbeError
from workers.launchers.local import LocalLauncher
from workers.scripts.probe import ScriptRun


@pytest.fixture
def ask(question, tmp_path):
    """``ask(step, whole=..., arguments=...)``: about a script that does ``step`` in each."""

    def ask(step="pass", *, whole="", **more):
        return asking_script(question, tmp_path, step, whole=whole, **more)

    return ask


@pytest.fixture
def run(tmp_path):
    """``run(question)``: what its script's probe finds."""

    def measure(question, *, pause=None, **more):
        known = {"deadline_s": 240.0, "peer_grace_s": 0.5, **more}
        probing = ScriptRun(
            launcher=LocalLauncher(),
            folder=tmp_path / "probes",
            visible=(),
            as_run=as_torchrun,
            **known,
        )
        try:
            return probing.measure(question, SETTINGS, pause or waiting)
        finally:
            assert not list((tmp_path / "probes").iterdir())
            assert not left(tmp_path)

    return measure


def test_steps_of_a_script_are_measured(ask, run):
    found = run(ask("time.sleep(0.01)"))
    assert found.outcome is Outcome.OK, found
    assert len(found.step_times_s[1]) == 10
    assert min(found.step_times_s[1]) >= 0.01
    assert len(found.memory.per_rank_bytes) == 2
    assert found.device_s == pytest.approx(2 * found.wall_s)
    assert found.losses == (1.0,) * 13


NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"  # torch's words
WITHHELD = {"TUNER_DB", "PET_NNODES", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGHOST", "MY_PASSWORD"}


def test_what_a_script_is_told(ask, run, tmp_path):
    (tmp_path / "config.yaml").write_text(
        "batch: {micro_batch_size}\nglobal: {global_batch_size}\n"
    )
    seen = tmp_path / "seen"
    look = f"""
        import os, sys
        from pathlib import Path
        from tuner.integrations import report_step
        path = Path(sys.argv[1])
        Path({str(seen)!r}).write_text("|".join((path.name, path.read_text(), os.environ["SIZE"],
            os.getcwd(), os.environ["USERS_OWN"], os.environ["WANTED_API_KEY"],
            str({WITHHELD} & {{*os.environ}}))))
        while True:
            report_step()
        """
    question = ask(
        whole=look, arguments=("{template}",), template="config.yaml",
        environment=["SIZE={micro_batch_size}"],
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("USERS_OWN", "kept")
        patch.setenv("WANTED_API_KEY", "named")
        patch.setenv("TUNER_PASS_ENV", "WANTED_API_KEY")
        for name in WITHHELD:  # with PET_NNODES torchrun would wait for another node
            patch.setenv(name, "2")
        assert run(question).outcome is Outcome.OK
    said = seen.read_text().split("|")
    assert said[:4] == ["config.yaml", "batch: 2\nglobal: 4\n", "2", str(tmp_path)]
    assert said[4:] == ["kept", "named", "set()"]


@pytest.mark.parametrize(
    ("step", "outcome", "detail"),
    [
        ("if rank == 1: raise MemoryError('too much')", "host_oom", "rank 1 in step: MemoryError"),
        (
            f'if rank == 1: raise RuntimeError("{NO_MEMORY}")',
            "host_oom",
            f"RuntimeError: {NO_MEMORY}",
        ),
        ("if rank == 1: raise ValueError('no')", "crashed", "rank 1 in step: ValueError: no"),
        ("if step == 2: sys.exit(0)", "crashed", "ended after 2 reported steps"),
        ("if rank == 1: os.kill(os.getpid(), 9)", "crashed", "its record is missing"),
        ("micro = 3", "wrong_result", "3 sequences in an optimizer step, and 2 x 1 were asked"),
        ("sys.modules['x'] = None; report_step(loss=float('nan'))", "non_finite", ""),
    ],
)
def test_how_a_script_may_end(ask, run, step, outcome, detail):
    wait = "if rank == 0: time.sleep(1000)"  # the peers of a failure hang
    hangs = step.startswith("if rank == 1")
    found = run(ask(f"{step}\n        {wait}" if hangs else step))
    assert found.outcome == outcome, found
    assert detail in found.detail
    assert bool(found.log_tails) is (outcome != "wrong_result")


def test_a_script_that_knows_of_nothing(ask, run):
    with pytest.raises(ProbeError) as error:
        run(ask(whole="print('trained')"))
    assert "reported no step before its end: add `from tuner.integrations import" in str(
        error.value
    )


def test_a_script_that_takes_too_long(ask, run):
    for deadline_s in (1.5, 15.0, 60.0):  # until it leaves the time for a step
        with suppress(ProbeError):
            found = run(ask("time.sleep(1000 if step else 0)"), deadline_s=deadline_s)
            break
    assert found.outcome is Outcome.TIMEOUT, found


def test_a_probe_that_is_given_up(ask, run):
    found = run(ask("time.sleep(1000)"), pause=lambda seconds: "somebody asked for it")
    assert found.outcome is Outcome.CANCELLED


def test_an_edited_script_is_not_run(ask, run, tmp_path):
    question = ask()
    (tmp_path / "train.py").write_text("print('other')")
    (tmp_path / "probes").mkdir()
    with pytest.raises(ProbeError, match="was edited since it was asked about"):
        run(question)


@pytest.mark.parametrize("killed", ["worker", "all but the ranks"])
def test_nothing_is_left_when_the_worker_is_killed(ask, tmp_path, eventually, killed):
    ask("time.sleep(1000 if step else 0)")
    worker = subprocess.Popen([sys.executable, "-P", "-c", WORKER, str(tmp_path)])
    try:
        eventually(lambda: len(left(tmp_path)) >= 3)  # two ranks and what starts them
        eventually(lambda: len(list(tmp_path.glob("probes/*/seen-*"))) == 2)
        others = psutil.Process(worker.pid).children(recursive=True)
        # all are looked at before one is killed: others may end with it
        for process in list(filter(is_no_rank, others)) if killed != "worker" else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        eventually(lambda: not left(tmp_path))
    finally:
        worker.kill()
        worker.wait()


def is_no_rank(process):
    try:
        return "RANK" not in process.environ()
    except psutil.NoSuchProcess:  # it has ended: a zombie is such a one too
        return False


WORKER = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from tests.process.workers.scripted import SETTINGS, as_torchrun, waiting
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.model import load_model
from tuner.core.script import read_script
from tuner.core.study import Question
from tuner.core.workload import Workload
from workers.launchers.local import LocalLauncher
from workers.scripts.probe import ScriptRun

folder = Path(sys.argv[1])
question = Question(
    workload=Workload(model=load_model("stories15m"), sequence_length=64, global_batch_size=4),
    cluster=parse_cluster("cpu:2"),
    framework=framework("torch"),
    script=read_script("train.py", arguments=("{{micro_batch_size}}",), folder=folder),
)
run = ScriptRun(
    launcher=LocalLauncher(), folder=folder / "probes", visible=(), deadline_s=240.0,
    as_run=as_torchrun,
)
run.measure(question, SETTINGS, waiting)
"""
