"""The worker's program: its words, and what is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.core.study import Limits, StudyState
from tuner.store import Store
from workers.__main__ import main
from workers.stop import SIGNALS

Run = Callable[..., tuple[object, str]]
PATIENT = """
import sys
from workers.__main__ import main
from workers.launchers import local
local.SILENCE_S = 600.0
sys.exit(main())
"""
"""A worker whose ranks would bear a long silence."""


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Run]:
    """Runs the program in this process: its exit code, and what it said."""
    monkeypatch.setattr("workers.stop.set_up_logs", lambda *_, **__: None)
    caplog.set_level("INFO", logger="workers")

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr("sys.argv", ["workers", *words])
        try:
            code: object = main()
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err + caplog.text

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_is_asked_for_wrongly_is_one_line(run: Run, store: Store, tmp_path: Path) -> None:
    none = tmp_path / "none.db"
    for words, why in (
        (("--db", store.url, "--study", "st-123456789abc"), "no such study"),
        (("--db", f"sqlite:///{none}", "--study", "st-1"), "no such database"),
        (("--study", "st-1", "--watch-fd", "777"), "usage"),
        (("--study", "st-1", "--watch-fd", "x"), "usage"),
        (("--study", "st-1", "--what"), "usage"),
        (("--study", "st-1", "--serve"), "usage"),
        (("--db", store.url, "--serve", "--pool", "a b"), "pool"),
    ):
        code, said = run(*words)
        assert code == 2, (words, said)
        assert why in said
    assert not none.exists()


def test_a_finished_study_needs_no_work(run: Run, store: Store, question) -> None:
    study = store.ask(question, Limits())
    assert store.move(study.id, StudyState.CANCELLED, "by a test")
    code, said = run("--db", store.url, "--study", study.id)
    assert code == 0
    assert "the study is cancelled: by a test" in said


def test_a_service_makes_its_database_and_ends_when_told_to_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    words = ("--db", url, "--serve", "--drain", "--name", "w1", "--pool", "h100")
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "workers", *words],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    said = json.loads(ended.stderr)  # a service without a terminal
    assert said["message"] == "serving any study, h100 as w1"
    assert (tmp_path / "new.db").exists()


def test_kill_leaves_no_real_rank_either(store, question, tmp_path, alive, eventually) -> None:
    study = store.ask(question, Limits())
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
