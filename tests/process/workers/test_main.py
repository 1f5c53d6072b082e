import json
import os
import subprocess
import sys
import time

import pytest

from tuner.core.study import StudyState, Terms

WORKERS = [sys.executable, "-P", "-m", "workers"]
PATIENT = """
import sys
from workers.__main__ import main
from workers.launchers import local
local.SILENCE_S = 600.0
sys.exit(main())
"""
"""A worker whose ranks would bear a long silence."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [*WORKERS, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)


def test_an_unknown_study_is_one_line_and_exit_code_2(store) -> None:
    ended = run("--db", store.url, "--study", "st-123456789abc")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "no such study" in ended.stderr


def test_a_database_that_is_not_there_is_not_made(tmp_path) -> None:
    ended = run("--db", f"sqlite:///{tmp_path}/none.db", "--study", "st-1")
    assert ended.returncode == 2
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "words", [["--watch-fd", "777"], ["--watch-fd", "x"], ["--what"], ["--serve"]]
)
def test_bad_usage(words) -> None:
    ended = run("--study", "st-1", *words)
    assert ended.returncode == 2
    assert "usage" in ended.stderr


def test_a_service_makes_its_database_and_ends_when_told_to_at_once(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    ended = run("--db", url, "--serve", "--drain", "--name", "w1", "--pool", "h100")
    assert ended.returncode == 0
    said = json.loads(ended.stderr)  # a service without a terminal
    assert said["message"] == "serving any study, h100 as w1"
    assert (tmp_path / "new.db").exists()


def test_a_pool_that_cannot_be_one_is_usage(tmp_path) -> None:
    ended = run("--db", f"sqlite:///{tmp_path}/new.db", "--serve", "--pool", "a b")
    assert ended.returncode == 2
    assert "pool" in ended.stderr


@pytest.mark.parametrize("words", [[], ["--cold"]])
def test_a_finished_study_needs_no_work(store, question, words) -> None:
    study = store.ask(question, Terms())
    assert store.move(study.id, StudyState.CANCELLED, "by a test")
    ended = run("--db", store.url, "--study", study.id, *words)
    assert ended.returncode == 0
    assert "the study is cancelled: by a test" in ended.stderr


def test_kill_leaves_no_real_rank_either(store, question, tmp_path, alive, eventually) -> None:
    study = store.ask(question, Terms())
    own = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TUNER_DB": store.url}
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", PATIENT, "--study", study.id],
        env={**os.environ, **own},
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: len(alive(str(tmp_path / "tuner" / "probes"))) == 2)
        assert all("600" in rank.cmdline() for rank in alive(str(tmp_path / "tuner" / "probes")))
        time.sleep(0.5)
    finally:
        worker.kill()
        worker.wait()
    eventually(lambda: not alive(str(tmp_path)))
