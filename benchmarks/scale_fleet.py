"""A fleet of workers at one PostgreSQL server: part of ``make bench-scale``.

Each simulated worker does with the store what a real one does for its probes, by the same code: it
registers and gives signs of life, looks for lost attempts, reads its study, claims a probe on a
device of its own, renews the lease, and records. Only the probe itself is left out: it is a wait
of 10 to 30 s. Ten workers share a study. All of them, and the server, run on this machine, so the
server's own processor time is told apart.
"""

import multiprocessing
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Event
from typing import Any

import psutil
from claims import database, new_study
from common import Goal, show
from service_writer import measured
from sqlalchemy import text

from tuner.core.framework import installed_versions
from tuner.errors import TunerError
from tuner.machine import this_machine
from tuner.store import Claim, Store, WorkerIdentity, open_store
from tuner.store.workers import Workers

FLEETS = (50, 200, 500)
"""Workers."""
EACH = 50
"""Workers of one process, which are its threads."""
SHARED = 10
"""Workers of one study."""
SECONDS = 60.0
PROBE_S = (10.0, 30.0)
"""A probe's time is drawn between these."""
BEAT_S = 10.0
"""Between two renewals of a lease, and two signs of life."""
SPARE_CONNECTIONS = 100
"""Of the server, beside two for each worker."""
PATIENCE_S = 120.0


@dataclass(kw_only=True)
class Seen:
    """What workers saw."""

    took_ms: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds of each call, by what it was."""
    probes: list[int] = field(default_factory=list)  # that were recorded
    lost: int = 0  # claims that did not hold until they were recorded
    errors: list[str] = field(default_factory=list)

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """What a call gives."""
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.took_ms.setdefault(name, []).append((time.perf_counter() - began) * 1e3)

    def add(self, other: "Seen") -> None:
        """Adds what others saw."""
        for name, took in other.took_ms.items():
            self.took_ms.setdefault(name, []).extend(took)
        self.probes += other.probes
        self.lost += other.lost
        self.errors += other.errors


def rows() -> list[dict[str, Any]]:
    return [_row(workers) for workers in FLEETS]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """No claim is lost, doubled or refused, however many workers there are."""
    return [
        Goal(
            name=f"{row['workers']} workers at one PostgreSQL: {what.replace('_', ' ')}",
            goal="<= 0",
            value=row[what],
        )
        for row in rows
        for what in ("recorded_twice", "lost", "errors")
    ]


def _row(workers: int) -> dict[str, Any]:
    connections = 2 * workers + SPARE_CONNECTIONS
    with database("postgresql", connections=connections) as url, open_store(url) as store:
        probes = int(2 * SHARED * SECONDS / PROBE_S[0])  # twice what they can take
        studies = [new_study(store, number, probes) for number in range(workers // SHARED)]
        server = _server_of(store)
        before_s, began = _used_s(server), time.monotonic()
        seen, held = _raced(url, studies, workers, server)
        wall_s, used_s = time.monotonic() - began, _used_s(server) - before_s
    took = [(name, sorted(took)) for name, took in seen.took_ms.items()]
    return {
        "workers": workers,
        "probes": len(seen.probes),
        "probes_per_s": len(seen.probes) / wall_s,
        "recorded_twice": len(seen.probes) - len(set(seen.probes)),
        "lost": seen.lost,
        "errors": len(seen.errors),
        **{f"{name}_median_ms": statistics.median(each) for name, each in took},
        **{f"{name}_p99_ms": each[int(0.99 * len(each))] for name, each in took},
        "connections": held,
        "server_ms_per_probe": used_s / max(1, len(seen.probes)) * 1e3,
        "server_cores": used_s / wall_s,
        "load": os.getloadavg()[0],
    }


def _raced(
    url: str, studies: Sequence[str], workers: int, server: psutil.Process
) -> tuple[Seen, int]:
    """What all workers saw, and how many connections they held at the end."""
    context = multiprocessing.get_context("spawn")
    over, results = context.Event(), context.Queue()
    first = range(0, workers, EACH)
    processes = [
        context.Process(target=_work_all, args=(url, studies, number, over, results))
        for number in first
    ]
    for process in processes:
        process.start()
    time.sleep(SECONDS)
    connections = len(server.children())
    over.set()
    seen = Seen()
    for _ in processes:
        seen.add(Seen(**results.get(timeout=PATIENCE_S)))
    for process in processes:
        process.join(PATIENCE_S)
    return seen, connections


def _work_all(url: str, studies: Sequence[str], first: int, over: Event, results: Any) -> None:
    seen = [Seen() for _ in range(EACH)]

    def work(number: int) -> None:
        with open_store(url) as store:
            study_id = studies[(first + number) // SHARED]
            try:
                _work(store, study_id, f"sim{first + number}/gpu", over, seen[number])
            except TunerError as error:
                seen[number].errors.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(EACH)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = Seen()
    for one in seen:
        whole.add(one)
    results.put(asdict(whole))


def _work(store: Store, study_id: str, device: str, over: Event, seen: Seen) -> None:
    worker, draw = WorkerIdentity.of_this_process(device), random.Random(device)
    workers = Workers(store.transactions)
    entry = workers.register(worker, [], this_machine().as_dict(), installed_versions())
    over.wait(draw.uniform(0, sum(PROBE_S) / 2))  # they do not all start at once
    while not over.is_set():
        seen.time("reap", store.reap)
        seen.time("read", lambda: store.study(study_id))
        claim = seen.time("claim", lambda: store.claim(study_id, worker, devices=(device,)))
        if claim is None:
            seen.errors.append("nothing was queued")
            break

        def beat(held: Claim = claim) -> object:
            return store.beat(held), workers.seen(entry)

        _hold(store, claim, draw.uniform(*PROBE_S), beat, over, seen)
    workers.stopped(entry)


def _hold(
    store: Store,
    claim: Claim,
    seconds: float,
    beat: Callable[[], object],
    over: Event,
    seen: Seen,
) -> None:
    """Have a probe for a while, and record it."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not over.wait(min(BEAT_S, left)):
        seen.time("beat", beat)
    if over.is_set():
        store.give_back(claim, "it is over")
    elif seen.time("record", lambda: store.record(claim, measured(claim.probe.row_id))):
        seen.probes.append(claim.probe.row_id)
    else:
        seen.lost += 1


def _server_of(store: Store) -> psutil.Process:
    """The process that starts one for each connection."""
    with store.transactions.read() as session:
        own = session.scalar(text("SELECT pg_backend_pid()"))
    parent = psutil.Process(own).parent()
    assert parent is not None
    return parent


def _used_s(server: psutil.Process) -> float:
    """Processor seconds of the server, those of connections that are closed included."""
    times = [process.cpu_times() for process in (server, *server.children())]
    ended = times[0].children_user + times[0].children_system
    return ended + sum(each.user + each.system for each in times)


if __name__ == "__main__":
    show("fleet", rows())
