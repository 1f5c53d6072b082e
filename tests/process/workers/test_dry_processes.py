"""The process that dry-runs: nothing is left of it, whoever ends."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tuner.client.advance import plan_here
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, ProbeRequest, ProbeState, Question, Study, StudyState
from tuner.dryrun import DryRunner, DryRunStoppedError
from tuner.planner import next_probe
from tuner.store import Store
from workers.dry_runs import DryRuns

STAND_IN = Path(__file__).parent / "stand_in_dry.py"
PREDICTED = Limits(fidelity=Fidelity.PREDICTED, max_probes=3)


@pytest.fixture
def question(question: Question) -> Question:
    """On GPUs that are not here."""
    return replace(question, cluster=parse_cluster("2xa100-80gb"))


def runner(does: str, marker: Path) -> Callable[[], DryRunner]:
    """The stand-in, with a word in its command line by which a test can find it."""
    command = (sys.executable, "-P", str(STAND_IN), does, str(marker))
    return partial(DryRunner, command=command, limit_s=20.0)


def test_what_is_given_up_leaves_no_process(
    question: Question,
    tmp_path: Path,
    alive: Callable[[str], list[psutil.Process]],
    eventually: Callable[..., None],
) -> None:
    plan = plan_here(question, next_probe_of(question).settings)
    with DryRuns(runner("hang", tmp_path)) as dry_runs:
        with pytest.raises(DryRunStoppedError, match="enough"):
            dry_runs.make(plan, lambda: "enough")
        eventually(lambda: not alive(str(tmp_path)))
    eventually(lambda: not alive(str(tmp_path)))


def test_a_killed_worker_leaves_no_dry_run(
    store: Store,
    question: Question,
    tmp_path: Path,
    alive: Callable[[str], list[psutil.Process]],
    eventually: Callable[..., None],
) -> None:
    """The program ends when its standard input closes, the stand-in as the real one."""
    study = store.ask(question, PREDICTED)
    worker = Path(__file__).parent / "stand_in_worker.py"
    words = (store.url, study.id, str(tmp_path / "probes"), "{}")
    argv = [sys.executable, "-P", str(worker), *words, "--dry", "wait"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    marker = f"{STAND_IN.name} wait {tmp_path}"
    try:
        eventually(lambda: any(p.state is ProbeState.RUNNING for p in store.study(study.id).probes))
        eventually(lambda: alive(marker))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: not alive(marker))


def next_probe_of(question: Question) -> ProbeRequest:
    study = Study(id="st-1", question=question, limits=PREDICTED, state=StudyState.RUNNING)
    request = next_probe(study)
    assert isinstance(request, ProbeRequest)
    return request
