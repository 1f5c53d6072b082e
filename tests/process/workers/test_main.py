"""The worker's program: its words, and what is left of it."""

import json
import signal
import subprocess
import sys

import pytest

from tuner.core.study import Limits, StudyState
from workers.__main__ import main
from workers.stop import SIGNALS


@pytest.fixture
def run(monkeypatch, capsys, caplog):
    """Runs the program in this process: its exit code, and what it said."""
    monkeypatch.setattr("workers.stop.set_up_logs", lambda *_, **__: None)
    caplog.set_level("INFO", logger="workers")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["workers", *words])
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err + caplog.text

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_is_asked_for_wrongly_is_one_line(run, store, tmp_path):
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


def test_a_finished_study_needs_no_work(run, store, question):
    study = store.ask(question, Limits())
    assert store.move(study.id, StudyState.CANCELLED, "by a test")
    code, said = run("--db", store.url, "--study", study.id)
    assert code == 0
    assert "the study is cancelled: by a test" in said


def test_a_service_makes_its_database_and_ends_when_told_to_at_once(tmp_path):
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
