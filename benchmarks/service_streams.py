"""Whether listeners are told everything, and who else is kept waiting by them: part of
``make bench-service``.

While stand-ins for workers have probes run, 200 event streams and 60 long polls are open; streams
are broken off again and again, and the server is killed once and started again.
"""

import http.client
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import service_writer
from common import Goal
from service_posts import p99
from service_server import result_of, serving, start_program

from tuner.store import open_store

LONGEST_HEALTH_MS = 100
PATIENCE_S = 180.0
TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many of everything."""

    studies: int = 20  # studies that are listened to
    streams: int = 200  # event streams, shared out among the studies
    polls: int = 60  # long polls, shared out as well
    probes: int = 15  # of each study; each makes three events
    pause_s: float = 0.1  # from one probe to the next
    most_events: int = 25  # after which a stream is broken off, at the latest
    health_s: float = 20.0
    """For which it is asked how long ``/healthz`` takes, before the server is killed."""
    health_pause_s: float = 0.05  # between two of these requests


def rows(size: Size | None = None) -> list[dict[str, Any]]:
    """One row: what was told and how quickly the server said that it was well."""
    size = size or Size()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = f"sqlite:///{folder}/studies.db"
        with open_store(db) as store:
            ids = service_writer.ask(store, size.studies)
        before_ms, during_ms, heard = _listened(db, folder, ids, size)
        with open_store(db) as store:
            truth = {study_id: [event.id for event in store.events(study_id)] for study_id in ids}
    streams, polls = heard["streams"], heard["polls"]
    told = [wrongs(one["ids"], truth[one["study_id"]]) for one in streams]
    errors = [error for one in (*streams, *polls) for error in one["errors"]]
    return [{
        "streams": len(streams),
        "polls": len(polls),
        "events": sum(map(len, truth.values())),
        "told": sum(len(one["ids"]) for one in streams),
        "missing": sum(one["missing"] for one in told),
        "doubled": sum(one["doubled"] for one in told),
        "out_of_order": sum(one["out_of_order"] for one in told),
        "reconnects": sum(one["connections"] - 1 for one in streams),
        "least_reconnects": min(one["connections"] - 1 for one in streams),
        "errors": len(errors),
        "what": next(iter(errors), ""),
        "healthz": len(during_ms),
        "healthz_alone_p99_ms": p99(before_ms),
        "healthz_median_ms": sorted(during_ms)[len(during_ms) // 2],
        "healthz_p99_ms": p99(during_ms),
        "healthz_slowest_ms": max(during_ms),
        "load": os.getloadavg()[0],
    }]  # fmt: skip


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    [row] = rows
    where = f"{row['streams']} event streams while probes run, reconnects and a killed server"
    health = f"/healthz with {row['polls']} long polls and {row['streams']} event streams open"
    wrong = [
        Goal(name=f"{where}: events {what.replace('_', ' ')}", goal="<= 0", value=row[what])
        for what in ("missing", "doubled", "out_of_order")
    ]
    return [
        *wrong,
        Goal(name=f"{where}: errors", goal="<= 0", value=row["errors"]),
        Goal(name=f"{where}: fewest reconnects of a stream", goal=">= 1",
             value=row["least_reconnects"]),
        Goal(name=f"{health}: p99, ms", goal=f"<= {LONGEST_HEALTH_MS}",
             value=row["healthz_p99_ms"]),
    ]  # fmt: skip


def wrongs(ids: Sequence[int], truth: Sequence[int]) -> dict[str, int]:
    """What is wrong with what a listener was told, against what happened."""
    counted, known = Counter(ids), set(truth)
    return {
        "missing": sum(event not in counted for event in truth),
        "doubled": sum(counted.values()) - len(counted) + len(counted.keys() - known),
        "out_of_order": sum(a > b for a, b in pairwise(ids)),
    }


def _listened(
    db: str, folder: Path, ids: Sequence[str], size: Size
) -> tuple[list[float], list[float], Any]:
    """Milliseconds that ``/healthz`` took alone and with all, and what was heard."""
    given = {
        "streams": [ids[number % len(ids)] for number in range(size.streams)],
        "polls": [ids[number % len(ids)] for number in range(size.polls)],
        "most": size.most_events,
        "seed": 1,
    }
    written = {"db": db, "studies": ids, "probes": size.probes, "pause_s": size.pause_s}
    with serving(db, folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        before_ms = healthz_ms(server.port, size.health_s / 4, size.health_pause_s)
        listener = start_program("service_listener.py", {**given, "url": url})
        assert listener.stdout is not None
        assert listener.stdout.readline() == "open\n"
        writer = start_program("service_writer.py", written)
        during_ms = healthz_ms(server.port, size.health_s, size.health_pause_s)
        assert writer.poll() is None, "the server is killed while probes run"
        server.kill()
        server.start()
        result_of(writer, PATIENCE_S)
        return before_ms, during_ms, result_of(listener, PATIENCE_S)


def healthz_ms(port: int, seconds: float, pause_s: float) -> list[float]:
    """Milliseconds of ``GET /healthz``, each on a connection of its own."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b'{"status":"ok"}')
        connection.close()
        found.append((time.perf_counter() - began) * 1e3)
        time.sleep(pause_s)
    return found
