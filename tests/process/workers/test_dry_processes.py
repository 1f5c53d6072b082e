"""The process that dry-runs: nothing is left of it, whoever ends."""

import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, ProbeState
from tuner.dryrun import DryRunner

STAND_IN = Path(__file__).parent / "stand_in_dry.py"
PREDICTED = Limits(fidelity=Fidelity.PREDICTED, max_probes=3)


@pytest.fixture
def question(question):
    """On GPUs that are not here."""
    return replace(question, cluster=parse_cluster("2xa100-80gb"))


def runner(does, marker):
    """The stand-in, with a word in its command line by which a test can find it."""
    command = (sys.executable, "-P", str(STAND_IN), does, str(marker))
    return partial(DryRunner, command=command, limit_s=20.0)


def test_a_killed_worker_leaves_no_dry_run(store, question, tmp_path, alive, eventually):
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
