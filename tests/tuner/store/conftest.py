"""The databases that the contract is tested on: SQLite always, PostgreSQL where it can be run."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, select, text, update
from sqlalchemy.orm import Session

from tests.postgresql import postgresql_server
from tuner.cluster import parse_cluster
from tuner.framework import framework
from tuner.measurement import Fidelity, Measurement, Memory, Outcome
from tuner.model import load_model
from tuner.settings import Settings
from tuner.store import Claim, Store, WorkerIdentity, migrate, open_store
from tuner.store.clock import clock
from tuner.store.tables import AttemptRow, StudyRow
from tuner.study import ProbeRequest, Question, Study, Terms
from tuner.workload import Workload

NewUrl = Callable[[], str]


@pytest.fixture(scope="session")
def new_postgresql() -> Iterator[NewUrl]:
    """Makes empty databases in a PostgreSQL server that is started for the tests."""
    with postgresql_server() as server:
        admin = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
        numbers = count()

        def make() -> str:
            name = f"test_{next(numbers)}"
            with admin.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            return make_url(server.get_uri()).set(database=name).render_as_string(False)

        with admin.connect() as connection:  # nothing here must survive a power cut
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        yield make
        admin.dispose()


@pytest.fixture(scope="session")
def shared_postgresql(new_postgresql: NewUrl) -> str:
    """The address of a database at the schema."""
    url = new_postgresql()
    migrate.upgrade(url)
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite file that does not exist yet, in a folder that does not either."""
    return f"sqlite:///{tmp_path}/data/tuner.db"


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]
)
def url(request: pytest.FixtureRequest) -> str:
    """The address of a database without studies, once for each kind."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return str(request.getfixturevalue("make_database")(folder / "data" / "tuner.db"))
    shared = str(request.getfixturevalue("shared_postgresql"))
    engine = create_engine(shared)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE studies, guards, workers RESTART IDENTITY CASCADE"))
    engine.dispose()
    return shared


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An open store, once for each kind of database."""
    with open_store(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def question() -> Question:
    """A question."""
    return Question(
        workload=Workload(model=load_model("stories15m"), sequence_length=128, global_batch_size=8),
        cluster=parse_cluster("cpu:2"),
        framework=framework("torch"),
    )


@pytest.fixture(scope="session")
def worker() -> WorkerIdentity:
    """This process as a worker."""
    return WorkerIdentity.of_this_process("the tests")


@pytest.fixture(scope="session")
def requests() -> Callable[[int], list[ProbeRequest]]:
    """Makes so many different probes."""

    def make(number: int) -> list[ProbeRequest]:
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
def found() -> Measurement:
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
def dead() -> WorkerIdentity:
    """A worker of this machine that has ended."""
    program = (
        "import json; from tuner.store import WorkerIdentity as Worker;"
        " print(json.dumps(Worker.of_this_process().as_dict()))"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return WorkerIdentity.from_dict(json.loads(run.stdout))


@pytest.fixture
def study(store: Store, question: Question) -> Study:
    """The question, asked."""
    return store.ask(question, Terms())


@pytest.fixture
def claim(
    store: Store,
    study: Study,
    requests: Callable[[int], list[ProbeRequest]],
    worker: WorkerIdentity,
) -> Claim:
    """One probe of the study, claimed by this process."""
    assert store.enter_probe(study.id, study.revision, requests(1)[0], 1000)
    claim = store.claim(study.id, worker)
    assert claim is not None
    return claim


@pytest.fixture
def run_out(store: Store) -> Callable[[], None]:
    """Lets all leases run out, and all signs of workers be old."""

    def run_out() -> None:
        with Session(store.transactions.writer) as session, session.begin():
            now = clock(session)
            # locked in one order, so that two of these do not wait for each other
            session.execute(select(AttemptRow.id).order_by(AttemptRow.id).with_for_update())
            session.execute(update(AttemptRow).values(lease_until=now))
            session.execute(update(StudyRow).values(worker_seen_at=now.replace(year=2000)))

    return run_out


@pytest.fixture
def count_statements() -> Iterator[Callable[[], list[str]]]:
    """Begins a list to which every statement is added from then on."""
    with ExitStack() as stack:

        def begin() -> list[str]:
            statements: list[str] = []

            def add(conn: object, cursor: object, statement: str, *rest: object) -> None:
                statements.append(statement)

            event.listen(Engine, "before_cursor_execute", add)
            stack.callback(event.remove, Engine, "before_cursor_execute", add)
            return statements

        yield begin
