"""A real service that wants keys, and folders as users have them."""

import json
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.unit.api.studies import MEASURED, finish, probe
from tests.waiting import until
from tuner.core.study import StudyState
from tuner.store import Store, open_store
from tuner.store.access import Keys
from tuner.store.tables import Scope

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BUDGET = {**MEASURED, "budget": {"max_probes": 2}}
TRIES = 50
WITHIN_S = 240
"""Seconds that anything may take on a busy machine."""
LONGER_S = (1, 10, 60)
"""Seconds to wait for an answer that does not come: until they are enough to ask."""
LENGTHS = count(16)
"""Sequence lengths; each is another question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs."""

    url: str
    """Where."""
    store: Store
    """Its studies."""
    key: str
    """One that may ask."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """On this machine, and nevertheless with keys."""
    folder = tmp_path_factory.mktemp("service")
    with open_store(f"sqlite:///{folder}/studies.db") as store:
        _, key = Keys(store.transactions).create("scheduler", Scope.SUBMIT)
        settings = Settings(_env_file=None, poll_s=0.02, require_keys=True)
        with serving(create_app(store, settings)) as url:
            yield Service(url=url, store=store, key=key)


@pytest.fixture
def folder(tmp_path):
    """A user's folder with the scripts, and a question of its own."""
    where = tmp_path / "job"
    where.mkdir()
    for name in ("ask-tuner.sh", "slurm/train.sbatch"):
        shutil.copy(EXAMPLES / name, where)
    return where


@pytest.fixture
def question(folder):
    """A question that no other test asks."""
    path = folder / "question.json"
    workload = {**BUDGET["workload"], "sequence_length": next(LENGTHS)}
    path.write_text(json.dumps({**BUDGET, "workload": workload}))
    return path


@pytest.fixture
def environment(service, tmp_path):
    """Of a user who has a key in a file."""
    key = tmp_path / "key"
    key.write_text(f"{service.key}\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(scratch),
        "TUNER_URL": service.url, "TUNER_KEY_FILE": str(key),
    }  # fmt: skip


@pytest.fixture
def working(service, question):
    """Has a thread do a worker's work once this test's question is asked, or cancel it."""
    threads = []
    length = json.loads(question.read_text())["workload"]["sequence_length"]

    def asked():
        for one in service.store.studies():
            if service.store.study(one.id).question.workload.sequence_length == length:
                return one.id
        return None

    def work(*, cancel):
        study_id = until(asked, WITHIN_S)
        if cancel:
            service.store.move(study_id, StudyState.CANCELLED, "enough")
            return
        for _ in range(TRIES):  # the service may be about to enter what it knows
            with suppress(AssertionError):
                probe(service.store, study_id)
                break
            time.sleep(0.1)
        finish(service.store, study_id)

    def start(*, cancel=False):
        threads.append(threading.Thread(target=work, kwargs={"cancel": cancel}))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(timeout=WITHIN_S)


@pytest.fixture
def run(folder, environment):
    """Runs a command in the folder; ``more`` is added to the environment."""

    def run(*argv, **more):
        return subprocess.run(
            argv, cwd=folder, env={**environment, **more}, capture_output=True, text=True,
            timeout=WITHIN_S, check=False,
        )  # fmt: skip

    return run
