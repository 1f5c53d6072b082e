import os
import signal
import sys

import pytest

from tuner.client.local import follow
from tuner.client.worker_process import Signals
from tuner.core.study import Limits, StudyState
from tuner.errors import ProbeError, StoppedError
from tuner.store import open_store

WAITS = """\
import sys, time
from pathlib import Path
for _ in range(3000):
    if Path(sys.argv[1]).exists():
        break
    time.sleep(0.02)
"""
MOVES = """\
from tuner.store import open_store
from tuner.core.study import StudyState
with open_store() as store:
    study = store.studies()[0].id
    store.move(study, StudyState.RUNNING)
    {then}
"""


class Watching:
    """A caller at a terminal, and a progress that remembers what it was shown."""

    def __init__(self, also=lambda study: None):
        """``also`` is shown everything too."""
        self._also = also
        self.shown = []
        self.notes = []
        self.closed = False

    def progress_of(self, study):
        return self

    def signals(self):
        return Signals()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def show(self, study):
        self.shown.append(study)
        self._also(study)

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def store(environment, monkeypatch):
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)
    with open_store() as opened:
        yield opened


@pytest.fixture
def study(store, question):
    return store.ask(question, Limits())


def script(text):
    return [sys.executable, "-P", "-c", text]


@pytest.mark.smoke
def test_what_happens_is_shown_and_returned(store, study):
    watching = Watching()
    text = MOVES.format(then="store.move(study, StudyState.DONE, 'enough')")
    found = follow(store, study, watching, script(text))
    assert (found.state, found.reason) == (StudyState.DONE, "enough")
    assert watching.shown[0].state is StudyState.QUEUED
    assert watching.shown[-1] is found
    assert watching.closed


def test_a_study_is_read_again_only_when_something_happened(store, study, monkeypatch, tmp_path):
    reads = []
    whole = store.study
    monkeypatch.setattr(store, "study", lambda id_: reads.append(id_) or whole(id_))
    enough = tmp_path / "enough"
    watching = Watching(lambda study: len(watching.shown) > 3 and enough.touch())
    follow(store, study, watching, [*script(WAITS), str(enough)])
    assert len(watching.shown) > 3
    assert len(reads) == 1


def test_a_failing_worker_is_an_error_with_its_last_words(store, study):
    words = "2026-11-21 06:00:00,123 worker: the disk is full"
    text = f"import sys; print('...', {words!r}, sep='\\n', file=sys.stderr); sys.exit(1)"
    match = r"^the disk is full$"
    with pytest.raises(ProbeError, match=match):
        follow(store, study, Watching(), script(text))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_worker_and_keeps_the_probes(store, answered, lab, number):
    study = store.ask(lab.question, Limits())
    sent = []

    def send(shown):
        if shown.state is StudyState.RUNNING and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    watching = Watching(send)
    text = MOVES.format(then="import time; time.sleep(60)")
    with pytest.raises(StoppedError) as caught:
        follow(store, study, watching, script(text))
    assert caught.value.exit_code == 128 + number
    assert str(caught.value) == (
        f"stopped by {number.name}; study {study.id} keeps its 2 probes,"
        " and the same command continues it"
    )
    assert watching.notes == ["stopping; once more to force it"]
