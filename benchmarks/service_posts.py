"""How fast ``POST /tune`` answers what is cached: part of ``make bench-service``.

Two questions are asked first by ``tuner suggest``, which makes real dry runs; all others are
answered from these. Then 32 processes ask the same questions again and again.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Goal
from service_client import Client
from service_server import TUNER, Server, environment, result_of, serving, start_program

from tuner.store import open_store
from tuner.store.access import Keys
from tuner.store.tables import Scope

CLIENTS = 32
SECONDS = 15.0
"""For which they ask: longer than answers are kept, so that some are made anew."""
DRY_RUN = (64, 320)
"""Global batch sizes whose answers rest on two dry runs; so do those of the others."""
NEW = (128, 320, 384, 448, 512, 640, 768, 1024)
MODEL, CLUSTER, FRAMEWORK, SEQUENCE_LENGTH = "llama-3.2-1b", "8xh100-80gb", "accelerate", 2048
WANTED_PER_S, LONGEST_P99_MS, LONGEST_NEW_S = 150, 400, 1
PATIENCE_S = 120.0

PLAIN, KEYED, IDEMPOTENT = "asked again", "asked again, a key each", "asked again, Idempotency-Key"
FIRST = "new questions, dry runs cached"


def body(global_batch_size: int) -> dict[str, Any]:
    workload = {
        "model": MODEL, "sequence_length": SEQUENCE_LENGTH, "global_batch_size": global_batch_size,
    }  # fmt: skip
    return {
        "workload": workload, "cluster": CLUSTER, "framework": FRAMEWORK, "fidelity": "predicted",
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = f"sqlite:///{folder}/studies.db"
        for size in DRY_RUN:
            _dry_run(db, folder, size)
        with serving(db, folder) as server:
            found = [_first(server)]
            found += [_measured(server, how) for how in (PLAIN, IDEMPOTENT)]
        with open_store(db) as store:
            keys = Keys(store.transactions)
            secrets = [keys.create(f"{n}", Scope.SUBMIT)[1] for n in range(CLIENTS)]
        with serving(db, folder, "--require-keys") as server:
            return [*found, _measured(server, KEYED, secrets)]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    by_case = {row["case"]: row for row in rows}
    plain, first = by_case[PLAIN], by_case[FIRST]
    where = f"POST /tune with a cached prediction, {plain['clients']} clients"
    new = f"POST /tune of {first['posts']} new questions whose dry runs are cached"
    errors = sum(row["errors"] for row in rows)
    return [
        Goal(name=f"{where}: answers/s", goal=f">= {WANTED_PER_S}", value=plain["per_s"]),
        Goal(name=f"{where}: p99, ms", goal=f"<= {LONGEST_P99_MS}", value=plain["p99_ms"]),
        Goal(name="POST /tune with a cached prediction, all cases: errors", goal="<= 0",
             value=errors),
        Goal(name=f"{new}: slowest, s", goal=f"<= {LONGEST_NEW_S}",
             value=first["slowest_ms"] / 1e3),
    ]  # fmt: skip


def p99(values: Sequence[float]) -> float:
    """The value that one in a hundred exceeds; the largest of fewer than two."""
    if len(values) < 2:
        return max(values, default=float("nan"))
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def row_of(
    case: str, clients: int, took_s: float, results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    latencies_s = [seconds for one in results for seconds in one["latencies_s"]]
    return {
        "case": case,
        "clients": clients,
        "posts": len(latencies_s),
        "per_s": len(latencies_s) / took_s,
        "median_ms": statistics.median(latencies_s) * 1e3,
        "p99_ms": p99(latencies_s) * 1e3,
        "slowest_ms": max(latencies_s) * 1e3,
        "errors": sum(one["count_errors"] for one in results),
        "what": next((one["errors"][0] for one in results if one["errors"]), ""),
        "load": os.getloadavg()[0],
    }


def _dry_run(db: str, folder: Path, size: int) -> None:
    words = [
        "--model", MODEL, "--cluster", CLUSTER, "--framework", FRAMEWORK, "--fidelity", "predicted",
        "--sequence-length", str(SEQUENCE_LENGTH), "--global-batch-size", str(size), "--json",
    ]  # fmt: skip
    command = [TUNER, "suggest", *words]
    subprocess.run(command, cwd=folder, env=environment(db), check=True, capture_output=True)


def _first(server: Server) -> dict[str, Any]:
    """Ask, one after the other, what nobody has asked yet."""
    given = {
        "port": server.port, "bodies": [body(size) for size in NEW], "posts": len(NEW),
        "seconds": PATIENCE_S,
    }  # fmt: skip
    began = time.perf_counter()
    seen = Client(given).run()
    return row_of(FIRST, 1, time.perf_counter() - began, [seen])


def _measured(server: Server, case: str, secrets: Sequence[str] = ()) -> dict[str, Any]:
    bodies = [body(size) for size in (*DRY_RUN, *NEW)]
    clients = []
    for number in range(CLIENTS):
        given: dict[str, Any] = {"port": server.port, "seconds": SECONDS, "bodies": bodies}
        given["first"] = number  # they do not all ask the same at the same time
        if secrets:
            given["headers"] = {"Authorization": f"Bearer {secrets[number]}"}
        if case == IDEMPOTENT:
            given["idempotency"] = f"client {number}"
        clients.append(start_program("service_client.py", given))
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("start\n")
        client.stdin.flush()
    results = [result_of(client, SECONDS + PATIENCE_S) for client in clients]
    return row_of(case, CLIENTS, time.perf_counter() - began, results)
