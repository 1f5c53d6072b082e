"""The example study and Optuna's dashboard, each in a process of its own."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.questions import question_about
from tests.unit.made import ok, study_of
from tuner.core.framework import framework
from tuner.results.optuna_storage import write_storage
from tuner.space import enumerate_space

EXAMPLE = Path(__file__).parents[3] / "examples" / "optuna_study.py"
DEADLINE_S = 120.0


@pytest.mark.smoke
def test_the_example_finds_a_configuration_that_fits():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert "best of 12" in done.stdout
    assert "'micro_batch_size': 2" in done.stdout


@pytest.fixture
def study():
    """One of whose configurations four were probed."""
    stack = framework("torch", {"torch": "2.13.0"}, {})
    question = question_about("stories15m", "2xl4", stack, tokens=128, batch=8)
    legal = enumerate_space(question).legal[:4]
    return study_of(question, *((str(one), ok(n, 500)) for n, one in enumerate(legal, start=1)))


@pytest.fixture
def dashboard(study, tmp_path):
    """Its address, over a storage with the study."""
    pytest.importorskip("optuna_dashboard")
    storage = tmp_path / "storage.db"
    assert write_storage(study, storage) == 4
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from optuna_dashboard._cli import main; main()"
    argv = [f"sqlite:///{storage}", "--port", str(port), "--server", "wsgiref"]
    with subprocess.Popen([sys.executable, "-c", code, *argv]) as served:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            served.terminate()


def read(address):
    """A page, as soon as there is a server."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return answer.read()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_optunas_dashboard_shows_an_exported_study(dashboard, study):
    assert b"<html" in read(f"{dashboard}/dashboard/").lower()
    (listed,) = json.loads(read(f"{dashboard}/api/studies"))["study_summaries"]
    assert listed["study_name"] == study.id
    shown = json.loads(read(f"{dashboard}/api/studies/{listed['study_id']}"))
    assert [trial["state"] for trial in shown["trials"]] == ["Complete"] * 4
    assert shown["best_trials"][0]["number"] == 0
    knobs = {param["name"] for trial in shown["trials"] for param in trial["params"]}
    assert {"sharding", "micro_batch_size"} <= knobs
