"""A store on SQLite, and what its tests put into it. ``tests/process/store`` runs them again on
PostgreSQL."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import Session

from tests.conftest import make_dry_run
from tests.questions import question_about
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Memory, Outcome
from tuner.core.study import Limits, ProbeRequest
from tuner.store import WorkerIdentity, open_store
from tuner.store.tables import AttemptRow, StudyRow, clock

ELSEWHERE = WorkerIdentity(host="elsewhere", boot_id="b", pid=1, started=1.0, name="elsewhere:1")
"""A worker of another machine: nobody here can see whether its process lives."""


def enter(store, study, requests):
    """Queues probes."""
    entered = []
    for request in requests:
        status = store.status(study.id)
        probe = store.enter_probe(study.id, status.revision, request, 1000)
        assert probe is not None
        entered.append(probe)
    return entered


def claimed(store, study, worker, *devices):
    """Claims the oldest probe that may run on these devices."""
    claim = store.claim(study.id, worker, devices=devices)
    assert claim is not None
    return claim


@pytest.fixture
def sqlite_url(tmp_path):
    """The address of a SQLite file that does not exist yet, in a folder that does not either."""
    return f"sqlite:///{tmp_path}/data/tuner.db"


@pytest.fixture
def url(tmp_path, make_database):
    """The address of a database without studies."""
    return make_database(tmp_path / "data" / "tuner.db")


@pytest.fixture
def store(url):
    """An open store, once for each kind of database."""
    with open_store(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def question():
    """A question."""
    return question_about("stories15m", "cpu:2", tokens=128, batch=8)


@pytest.fixture(scope="session")
def worker():
    """This process as a worker."""
    return WorkerIdentity.of_this_process("the tests")


@pytest.fixture(scope="session")
def requests():
    """Makes so many different probes."""

    def make(number):
        return [
            ProbeRequest(
                settings=Settings(micro_batch_size=1 + i % 4, gradient_accumulation_steps=4),
                fidelity=Fidelity.MEASURED,
                repetition=i // 4,
                accumulation_counts=(1, 2),
            )
            for i in range(number)
        ]

    return make


@pytest.fixture(scope="session")
def found():
    """A measurement with everything in it."""
    return Measurement(
        outcome=Outcome.OK,
        detail="all steps done",
        memory=Memory(
            allocated_bytes=300,
            allocated_low_bytes=290,
            reserved_bytes=400,
            device_bytes=500,
            overhead_bytes=100,
            by_phase={"forward": 200, "backward": 300},
            by_category={"parameters": 60},
            per_rank_bytes=(300, 280),
        ),
        step_times_s={1: (0.5, 0.5, 0.6), 2: (1.0, 3.0, 2.0)},
        tracked_accumulation=2,
        losses=(10.5, 10.25),
        gradient_norms=(1.5, float("inf")),
        optimizer_steps=8,
        expected_optimizer_steps=8,
        versions={"torch": "2.13.0"},
        hardware={"cores": 2},
        wall_s=12.5,
        device_s=25.0,
    )


@pytest.fixture(scope="session")
def dry_run_of():
    """Makes dry runs."""
    return make_dry_run


@pytest.fixture(scope="session")
def dead():
    """A worker of this machine that has ended."""
    program = (
        "import json; from tuner.store import WorkerIdentity as Worker;"
        " print(json.dumps(Worker.of_this_process().as_dict()))"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return WorkerIdentity.from_dict(json.loads(run.stdout))


@pytest.fixture
def study(store, question):
    """The question, asked."""
    return store.ask(question, Limits())


@pytest.fixture
def claim(store, study, requests, worker):
    """One probe of the study, claimed by this process."""
    assert store.enter_probe(study.id, study.revision, requests(1)[0], 1000)
    claim = store.claim(study.id, worker)
    assert claim is not None
    return claim


@pytest.fixture
def run_out(store):
    """Lets all leases run out, and all signs of workers be old."""

    def run_out():
        with Session(store.transactions.writer) as session, session.begin():
            now = clock(session)
            # locked in one order, so that two of these do not wait for each other
            session.execute(select(AttemptRow.id).order_by(AttemptRow.id).with_for_update())
            session.execute(update(AttemptRow).values(lease_until=now))
            session.execute(update(StudyRow).values(worker_seen_at=now.replace(year=2000)))

    return run_out


@pytest.fixture
def count_statements():
    """Begins a list to which every statement is added from then on."""
    with ExitStack() as stack:

        def begin():
            statements = []

            def add(conn, cursor, statement, *rest):
                statements.append(statement)

            event.listen(Engine, "before_cursor_execute", add)
            stack.callback(event.remove, Engine, "before_cursor_execute", add)
            return statements

        yield begin
