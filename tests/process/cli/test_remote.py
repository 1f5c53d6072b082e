"""``tuner suggest --server`` against a service that really listens; a thread is its worker."""

import os
import signal
import threading
from dataclasses import replace

import pytest
import yaml

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.unit.api.studies import TINY, finish, probe
from tuner.client import remote
from tuner.client.answered import PlainLines
from tuner.core.study import StudyState
from tuner.store import open_store


@pytest.fixture
def store(tmp_path):
    """The service's own, not the caller's."""
    with open_store(f"sqlite:///{tmp_path}/service.db") as opened:
        yield opened


@pytest.fixture
def url(store, environment, monkeypatch):
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)
    monkeypatch.delenv("TUNER_KEY", raising=False)
    with serving(create_app(store, Settings(_env_file=None, poll_s=0.02))) as address:
        yield address


@pytest.fixture
def asked(tiny, url):
    """The question as it is written."""
    return [
        "suggest", "--server", url, "--model", tiny, "--cluster", "cpu:2", "--framework",
        "accelerate", "--global-batch-size", "16", "--sequence-length", "32",
        "--fidelity", "measured", "--max-probes", "4",
    ]  # fmt: skip


@pytest.fixture
def working(store, monkeypatch):
    """Has a thread do a worker's work once a study is followed: ``working(ends, measurement)``."""
    threads, followed, watch = [], threading.Event(), remote.watch

    def watched(*words):
        followed.set()
        watch(*words)

    def work(end, found):
        assert followed.wait(60)
        study_id = store.studies()[0].id
        for _ in range(2):
            probe(store, study_id, found)
        end(study_id)

    def start(end, found=None):
        followed.clear()
        threads.append(threading.Thread(target=work, args=(end, found)))
        threads[-1].start()

    monkeypatch.setattr(remote, "watch", watched)
    yield start
    for thread in threads:
        thread.join(timeout=120)


def test_a_service_s_answer_is_shown_and_its_files_written(
    cli, asked, store, working, tmp_path, database
):
    working(lambda study_id: finish(store, study_id))
    path = tmp_path / "a.yaml"
    found = cli(*asked, "--write", f"accelerate={path}")
    assert found.code == 0, found.err
    (study,) = store.studies()
    sent = store.study(study.id).question.workload.model  # its file was read here
    assert (sent.name, sent.hidden_size) == ("tiny", TINY["hidden_size"])
    assert f"study {study.id} at http://127.0.0.1" in found.err
    assert "probe #1 (1/4): ok" in found.err
    assert "probe #2 (2/4): ok" in found.err
    for text in ("\nAnswer ", f"\nWritten  {path}\n", "\nNext     accelerate launch", study.id):
        assert text in found.out, found.out
    assert yaml.safe_load(path.read_text())
    assert not database.exists()  # nothing is written here


def test_an_answer_on_another_s_terms_is_refused(cli, asked, store, working, database):
    def ask_otherwise_and_finish(study_id):
        study = store.study(study_id)
        store.ask(study.question, replace(study.limits, headroom=0.25))
        finish(store, study_id)

    working(ask_otherwise_and_finish)
    found = cli(*asked)
    assert found.code == 1
    assert "asked again with other limits meanwhile (headroom 0.25)" in found.err
    assert not found.out


def test_what_is_open_on_another_s_terms_is_replaced_only_when_asked_to(cli, asked, store, working):
    working(lambda study_id: finish(store, study_id))
    assert cli(*asked).code == 0
    study = store.study(store.studies()[0].id)
    store.ask(study.question, replace(study.limits, headroom=0.25))
    refused = cli(*asked)
    assert refused.code == 1
    assert "is open with other limits (headroom 0.25, not 0.05)" in refused.err
    assert "--replace does" in refused.err
    assert store.study(study.id).limits.headroom == 0.25

    working(lambda study_id: finish(store, study_id))
    found = cli(*asked, "--replace")
    assert found.code == 0, found.err
    assert store.study(study.id).limits == study.limits
    here = cli(*asked[:1], *asked[3:], "--replace")
    assert here.code == 2
    assert "replace: " in here.err


def test_ctrl_c_leaves_the_study_and_says_how_to_cancel_it(cli, asked, store, url, monkeypatch):
    """Once its first event has come, so that it is read again."""
    shown = []
    show = PlainLines.show

    def interrupt(lines, study):
        show(lines, study)
        if shown and study is not shown[-1]:
            os.kill(os.getpid(), signal.SIGINT)
        shown.append(study)

    monkeypatch.setattr(PlainLines, "show", interrupt)
    found = cli(*asked)
    assert found.code == 130
    (study,) = store.studies()
    assert study.state is StudyState.QUEUED
    command = f"tuner studies cancel {study.id} --server {url}"
    assert command in found.err
    cancelled = cli(*command.split()[1:], "--json")
    assert cancelled.code == 0, cancelled.err
    assert cancelled.json == {"study_id": study.id, "state": "cancelled"}
    assert store.studies()[0].state is StudyState.CANCELLED
    again = cli(*command.split()[1:])
    assert again.code == 1
    assert "cancelled already" in again.err
