"""Jobs of small stand-in ranks, and a look at what is left of them."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.unit.workers.conftest import question, store
from tests.waiting import until
from workers.launchers.base import WATCH_FD, Job

STAND_IN = Path(__file__).parent / "stand_in_rank.py"
STAND_IN_WORKER = Path(__file__).parent / "stand_in_worker.py"

__all__ = ["question", "store"]


@pytest.fixture
def stand_in_argv():
    """The argv of a stand-in rank: ``stand_in_argv(out, {"0": [...], "*": [...]})``."""

    def argv(out, script, silence_s=120.0):
        program = (sys.executable, "-P", str(STAND_IN), str(out))
        return (*program, WATCH_FD, str(silence_s), json.dumps(script))

    return argv


@pytest.fixture
def make_job(tmp_path, stand_in_argv):
    """A job of two stand-in ranks: ``make_job({"0": [...]}, deadline_s=...)``.

    Its folder is ``name`` in the test's own: a job that follows another one needs its own.
    """

    def job(script, *, silence_s=120.0, name="", **fields):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        known = {
            "argv": stand_in_argv(folder, script, silence_s),
            "directory": folder,
            "ranks": 2,
            "device": "cpu",
            "deadline_s": 120.0,
            "peer_grace_s": 0.3,
            "term_grace_s": 0.3,
        }
        return Job(**{**known, **fields})

    return job


@pytest.fixture
def alive():
    """Living processes whose command line holds a text; ended ones that nobody reaped are not."""

    def find(marker):
        return [
            process
            for process in psutil.process_iter(["cmdline", "status"])
            if marker in " ".join(process.info["cmdline"] or ())
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    return find


@pytest.fixture
def eventually():
    """Wait until a condition holds."""
    return until


@pytest.fixture
def start_worker(store, tmp_path):
    """Starts a worker process with stand-in ranks: ``start_worker(study_id, script)``."""
    started = []

    def start(study_id, script, *watch_fd):
        words = (store.url, study_id, str(tmp_path / "probes"), json.dumps(script))
        argv = [sys.executable, "-P", str(STAND_IN_WORKER), *words, *map(str, watch_fd)]
        process = subprocess.Popen(argv, pass_fds=watch_fd, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
