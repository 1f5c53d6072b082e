"""``tuner.suggest``; what a worker would measure is in the database already, or it is real."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from api.app import create_app
from api.settings import Settings as ServiceSettings
from tests.models import TINY
from tests.process.api.live import serving
from tests.unit.api.studies import finish, probe
from tuner.client.worker_process import Signals, Worker
from tuner.core.measurement import Fidelity
from tuner.core.study import Study, StudyState
from tuner.store import Store, open_store

SLEEPS = """\
import time
from tuner.store import open_store
from tuner.core.study import StudyState
with open_store() as store:
    store.move(store.studies()[0].id, StudyState.RUNNING)
    time.sleep(60)
"""


@pytest.fixture
def asked(tiny: str, environment: dict[str, str]) -> dict[str, Any]:
    """The question of the studies that are made by hand."""
    return {
        "model": tiny, "cluster": "cpu:2", "framework": "accelerate", "global_batch_size": 8,
        "sequence_length": 32, "max_probes": 5,
    }  # fmt: skip


def test_what_is_stored_is_answered(asked: dict[str, Any], answered: Study, tmp_path: Path) -> None:
    lines: list[str] = []
    path = tmp_path / "a.yaml"
    found = tuner.suggest(**asked, write={"accelerate": path}, progress=lines.append)
    assert isinstance(found, tuner.Suggestion)
    assert found.study_id == answered.id
    assert found.best is not None
    assert found.best.settings.micro_batch_size == 4
    assert found.best.tokens_per_s_per_gpu.provenance is tuner.Provenance.MEASURED
    assert found.launch["files"][str(path)] == path.read_text()
    assert lines[0].startswith(f"study {answered.id}: tiny on cpu:2 (accelerate)")
    assert "answered from what is stored, 2 probes since" in lines[0]


def test_the_same_is_the_command_s_answer(asked: dict[str, Any], answered: Study, cli: Any) -> None:
    command = ["--max-probes", "5", "--global-batch-size", "8", "--sequence-length", "32"]
    place = ["--model", asked["model"], "--cluster", "cpu:2", "--framework", "accelerate"]
    assert cli("suggest", *command, *place, "--json").json == tuner.suggest(**asked).as_dict()


def test_an_answer_is_short_to_look_at_and_can_be_sent_to_another_process(
    asked: dict[str, Any], answered: Study
) -> None:
    found = tuner.suggest(**asked)
    assert isinstance(found, tuner.Answer)
    shown = f"Answer(study_id='{answered.id}', settings='sharding=full_shard,"
    assert repr(found).startswith(shown)
    assert len(repr(found)) < 500
    assert pickle.loads(pickle.dumps(found)) == found


def test_numbers_may_be_numpy_s(asked: dict[str, Any], answered: Study) -> None:
    theirs = {"global_batch_size": np.int64(8), "max_probes": np.int32(5), "headroom": None}
    assert tuner.suggest(**{**asked, **theirs}).study_id == answered.id


TYPED = """\
import tuner
found = tuner.suggest(model="gpt2", global_batch_size=8, sequence_length=8, knobs={"tp_size": [1]})
best: int = found.best.settings.micro_batch_size
speed: float | None = found.best.tokens_per_s_per_gpu.value
same: tuner.Suggestion = found
one: tuner.Prediction = tuner.predict({"cluster": "cpu:2"})
several: list[tuner.Prediction] = tuner.predict([{"cluster": "cpu:2"}])
script = tuner.read_script("train.py", launch="accelerate", environment={"A": "{tp_size}"})
try:
    tuner.suggest(global_batch_size=8, sequence_length=8, script=script)
except tuner.NothingFitsError as error:
    known: int = error.suggestion.legal if error.suggestion else 0
"""


@pytest.mark.slow
def test_a_program_that_asks_is_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(program)]
    cache = f"--cache-dir={tmp_path / 'cache'}"
    found = subprocess.run([*command, cache], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.usefixtures("answered")
def test_a_model_may_be_given_by_its_fields(asked: dict[str, Any], answered: Study) -> None:
    assert tuner.suggest(**{**asked, "model": TINY}).study_id == answered.id
    assert tuner.suggest(**{**asked, "model": Path(asked["model"])}).study_id == answered.id


def test_no_answer_is_an_error_with_what_is_known(asked: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    place = {"cluster": "2xa100-80gb", "fidelity": "predicted", "memory_limit_gib": 0.001}
    with pytest.raises(tuner.NothingFitsError, match="nothing fits") as caught:
        tuner.suggest(**{**asked, **place}, write={"accelerate": path})
    assert caught.value.suggestion is not None
    assert caught.value.suggestion.best is None
    assert caught.value.suggestion.legal > 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "lama"}, "model: got 'lama'"),
        ({"model": 8}, "model: got 8"),
        ({"model": None}, "model: got nothing; is required"),
        ({"cluster": 8}, "cluster: got 8"),
        ({"cluster": "8xh100-80gb"}, "cluster: got '8xh100-80gb'"),
        ({"global_batch_size": "8"}, "global_batch_size: got '8'"),
        ({"global_batch_size": True}, "global_batch_size: got true"),
        ({"sequence_length": 1e6}, "sequence_length: got 1000000.0"),
        ({"precision": "fp8"}, "precision: got 'fp8'"),
        ({"reduce_dtype": "fp8"}, "reduce_dtype: got 'fp8'"),
        ({"framework": "jax"}, "framework: got 'jax'"),
        ({"framework_versions": {"accelerate": "new"}}, "framework_version: "),
        ({"framework_versions": {"jax": "1"}}, "framework_version: got 'jax'"),
        ({"knobs": {"tp": [1]}}, "knob: got 'tp'"),
        ({"knobs": {"tp_size": 1}}, "tp_size: got 1; must be a list"),
        ({"knobs": {"sharding": "ddp"}}, "sharding: got 'ddp'; must be a list"),
        ({"headroom": 1}, "headroom: got 1"),
        ({"headroom": 0.1, "memory_limit_gib": 4}, "headroom: got 0.1; is not applied"),
        ({"memory_limit_gib": "4GiB"}, "memory_limit_gib: got '4GiB'"),
        ({"fidelity": "guess"}, "fidelity: got 'guess'"),
        ({"max_probes": 0}, "max_probes: got 0"),
        ({"max_probes": 2.5}, "max_probes: got 2.5"),
        ({"wall_s": -1}, "wall_s: got -1"),
        ({"gpu_s": "10m"}, "gpu_s: got '10m'"),
        ({"probe_deadline_s": 0}, "probe_deadline_s: got 0"),
        (
            {"probe_deadline_s": 60, "fidelity": "predicted"},
            "probe_deadline: got 60.0; is for probes",
        ),
        (
            {"probe_deadline_s": 60, "server": "http://127.0.0.1:1"},
            "probe_deadline: got 60.0; is for",
        ),
        ({"tolerance": 1.5}, "tolerance: got 1.5"),
        ({"pool": "a b"}, "pool: got 'a b'"),
        ({"write": {"nothing": "x"}}, "write: got 'nothing'"),
        ({"key": "secret"}, "key: got 'one'; needs a server"),
        ({"replace": True}, "replace: got true; needs a server"),
        ({"server": "http://127.0.0.1:1", "db": "sqlite:///x.db"}, "db: got 'sqlite:///x.db'"),
        ({"server": "nowhere"}, "server: got 'nowhere'"),
        ({"db": Path("x.db")}, "db: got 'x.db'; must be sqlite:"),
        ({"knobs": ["tp_size"]}, "knobs: got ['tp_size']; must be an object"),
        ({"framework_versions": ["torch"]}, "framework_version: got ['torch']; must be an object"),
        ({"write": ["accelerate"]}, "write: got ['accelerate']; must be a mapping"),
        ({"write": {"accelerate": 5}}, "write: got 5; must be the path"),
        ({"script": "train.py"}, "script: got 'train.py'; must be what tuner.read_script returns"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(
    asked: dict[str, Any], database: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(tuner.UsageError) as caught:
        tuner.suggest(**{**asked, **change})
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not database.exists()


@pytest.fixture
def own_ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python has it, also where a shell has it ignored, as for what runs behind it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# one that comes while something is finalized is dropped, and told so; another is sent
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("own_ctrl_c")
def test_ctrl_c_is_python_s_own_and_ends_the_worker(
    asked: dict[str, Any], made: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "up"
    text = f"open({str(mark)!r}, 'w').write(str(__import__('os').getpid()))\n{SLEEPS}"
    argv = [sys.executable, "-P", "-c", text]
    monkeypatch.setattr("tuner.client.local.worker_argv", lambda study_id, **_: argv)
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)

    def interrupt() -> None:
        with open_store() as store:
            while not any(one.state is StudyState.RUNNING for one in store.studies()):
                pass
        while not heard.is_set():  # Python drops one that comes while it finalizes something
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(100):  # short ones, as all of this process may stand still meanwhile
                heard.wait(0.05)

    def stop(worker: Worker, signals: Signals) -> None:
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
def service(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Store]]:
    monkeypatch.setattr("tuner.client.local.POLL_S", 0.02)
    monkeypatch.delenv("TUNER_KEY", raising=False)
    with open_store(f"sqlite:///{tmp_path}/service.db") as store:
        settings = ServiceSettings(_env_file=None, poll_s=0.02)
        with serving(create_app(store, settings)) as url:
            yield url, store


def test_a_service_answers(
    asked: dict[str, Any], service: tuple[str, Store], database: Path
) -> None:
    url, store = service
    lines: list[str] = []
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
    assert any(line.startswith("probe 2/2: ok") for line in lines)
    assert store.study(study.id).limits.fidelity is Fidelity.MEASURED
    assert not database.exists()


@pytest.fixture
def another_service() -> Iterator[str]:
    """One that has nothing to do with this, and answers with JSON all the same."""

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"ok": true}'
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_another_kind_of_service_is_said_to_be_one(
    asked: dict[str, Any], another_service: str
) -> None:
    with pytest.raises(tuner.ServiceError, match="this is no tuner service"):
        tuner.suggest(**asked, server=another_service)


@pytest.mark.slow
def test_a_real_worker_answers_a_thread(asked: dict[str, Any]) -> None:
    """As in a notebook's server: no signal handler may be set there."""
    lines: list[str] = []
    knobs = {"sharding": ["ddp"], "activation_checkpointing": ["none"]}
    wanted = {**asked, "max_probes": 1, "knobs": knobs}
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(tuner.suggest, **wanted, progress=lines.append).result()
    assert found.best is not None
    assert found.best.allocated_gib.provenance is tuner.Provenance.MEASURED
    assert lines[-1].startswith("probe 1/1: ok")
