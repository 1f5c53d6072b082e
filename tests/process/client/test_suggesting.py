"""``tuner.suggest``; what a worker would measure is in the database already, or it is real."""

import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import tuner
from api.app import create_app
from api.settings import Settings as ServiceSettings
from tests.process.api.live import serving
from tests.unit.api.studies import finish, probe
from tuner.client.worker_process import Worker
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState
from tuner.store import open_store

SLEEPS = """\
import time
from tuner.store import open_store
from tuner.core.study import StudyState
with open_store() as store:
    store.move(store.studies()[0].id, StudyState.RUNNING)
    time.sleep(60)
"""


@pytest.fixture
def asked(tiny, environment):
    """The question of the studies that are made by hand."""
    return {
        "model": tiny, "cluster": "cpu:2", "framework": "accelerate", "precision": "bf16",
        "global_batch_size": 8, "sequence_length": 32, "max_probes": 5,
    }  # fmt: skip


def test_what_is_stored_is_answered(asked, answered, tmp_path):
    lines = []
    path = tmp_path / "a.yaml"
    found = tuner.suggest(**asked, write={"accelerate": path}, progress=lines.append)
    assert isinstance(found, tuner.Suggestion)
    assert found.study_id == answered.id
    assert found.best.settings.micro_batch_size == 4
    assert found.best.tokens_per_s_per_gpu.provenance is tuner.Provenance.MEASURED
    assert found.launch["files"][str(path)] == path.read_text()
    assert lines[0].startswith(f"study {answered.id}: tiny on cpu:2 (accelerate)")
    assert "answered from what is stored, 2 probes since" in lines[0]
    with open_store() as store:
        line = store.summaries([answered.id])[answered.id].content
    assert line["settings"] == found.best.settings.as_dict(), "lists of studies show it too"


def test_the_same_is_the_command_s_answer(asked, answered, cli):
    command = ["--max-probes", "5", "--global-batch-size", "8", "--sequence-length", "32"]
    place = ["--model", asked["model"], "--cluster", "cpu:2", "--framework", "accelerate"]
    place += ["--precision", "bf16"]
    shown = cli("suggest", *command, *place, "--json").json
    assert shown.pop("scale")["devices"] == 2  # the command says beside it what all devices do
    assert shown == tuner.suggest(**asked).as_dict()


def test_an_answer_is_short_to_look_at_and_can_be_sent_to_another_process(asked, answered):
    found = tuner.suggest(**asked)
    assert isinstance(found, tuner.Answer)
    shown = f"Answer(study_id='{answered.id}', settings='sharding=full_shard,"
    assert repr(found).startswith(shown)
    assert len(repr(found)) < 500
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_file_in_use_is_dry_run_as_it_is_today_and_at_its_best(tiny, cli, tmp_path, preloading):
    path = tmp_path / "accelerate.yaml"
    path.write_text("{distributed_type: FSDP, num_processes: 2, fsdp_config: {fsdp_version: 2}}")
    place = ["--model", tiny, "--cluster", "2xa100-80gb", "--framework", "accelerate"]
    place += ["--global-batch-size", "8", "--sequence-length", "32", "--fidelity", "predicted"]
    today = ["--settings", "micro_batch_size=2,sync_each_batch=true"]
    found = cli("suggest", "--from", str(path), *place, *today, "--json")
    assert found.code == 0, found.err
    assert found.json["best"]["memory"]["basis"] == "dry_run"
    today = found.json["from"]["today"]["prediction"]
    assert today["memory"]["basis"] == "dry_run"


def test_no_answer_is_an_error_with_what_is_known(asked, tmp_path, preloading):
    path = tmp_path / "a.yaml"
    place = {"cluster": "2xa100-80gb", "fidelity": "predicted", "memory_limit_gib": 0.001}
    with pytest.raises(tuner.NothingFitsError, match="nothing fits") as caught:
        tuner.suggest(**{**asked, **place}, write={"accelerate": path})
    assert caught.value.suggestion.best is None
    assert caught.value.suggestion.legal > 0
    assert not path.exists()


@pytest.fixture
def own_ctrl_c():
    """Ctrl-C as Python has it, also where a shell has it ignored, as for what runs behind it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# one that comes while something is finalized is dropped, and told so; another is sent
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("own_ctrl_c")
def test_ctrl_c_is_python_s_own_and_ends_the_worker(asked, made, monkeypatch, tmp_path):
    mark = tmp_path / "up"
    text = f"open({str(mark)!r}, 'w').write(str(__import__('os').getpid()))\n{SLEEPS}"
    argv = [sys.executable, "-P", "-c", text]
    monkeypatch.setattr("tuner.client.local.worker_argv", lambda study_id, probing: argv)
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)

    def interrupt():
        with open_store() as store:
            while not any(one.state is StudyState.RUNNING for one in store.studies()):
                pass
        while not heard.is_set():  # Python drops one that comes while it finalizes something
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):  # short ones, as all of this process may stand still meanwhile
                heard.wait(0.05)

    def stop(worker, signals):
        heard.set()
        stops(worker, signals)

    stops = Worker.stop
    monkeypatch.setattr(Worker, "stop", stop)
    heard, thread = threading.Event(), threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tuner.suggest(**asked)
    heard.set()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.fixture
def service(tmp_path, environment, monkeypatch):
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)
    monkeypatch.delenv("TUNER_KEY", raising=False)
    with open_store(f"sqlite:///{tmp_path}/service.db") as store:
        settings = ServiceSettings(_env_file=None, poll_s=0.02)
        with serving(create_app(store, settings)) as url:
            yield url, store


def test_a_service_answers(asked, service, database):
    url, store = service
    lines = []
    wanted = {**asked, "global_batch_size": 16, "fidelity": "measured", "max_probes": 2}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tuner.suggest, **wanted, server=url, progress=lines.append)
        while not any(line.startswith("study ") for line in lines):  # notes may come before
            assert not answer.done(), answer.result()
            time.sleep(0.01)
        (study,) = store.studies()
        probe(store, study.id)
        probe(store, study.id)
        finish(store, study.id)
        found = answer.result(timeout=60)
    assert found.study_id == study.id
    assert found.provenance is tuner.Provenance.MEASURED
    assert any(line.startswith(f"study {study.id} at {url}") for line in lines)
    assert any(line.startswith("probe #2 (2/2): ok") for line in lines)
    assert store.study(study.id).limits.fidelity is Fidelity.MEASURED
    assert not database.exists()
