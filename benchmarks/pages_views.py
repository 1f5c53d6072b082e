"""A study's page as it is first seen after an event, and as it is seen again: part of ``pages.py``.

The server is a process of its own, started by ``tuner serve``, on SQLite. Before each first view
one more probe of the study is done, so nothing that was made of the study holds any more. Seconds
are those from the request to the last byte on this machine; the server's processor time is beside
them, which other programs lengthen less.
"""

import gzip
import http.client
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pages_study
from common import Goal
from service_server import serving

from tuner.store import open_store

FIRST_VIEWS = 20
"""After one that is not counted: a server that has just started."""
AGAIN = 5
"""Views after each first one."""
MOST_FIRST_MS, MOST_BYTES = 150, 300_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def rows(
    probes: int = pages_study.PROBES, first_views: int = FIRST_VIEWS, batch: int = 5040
) -> list[dict[str, Any]]:
    """A row for the first view after an event, and one for those after it."""
    made = pages_study.study(pages_study.question(batch), probes + first_views)
    with tempfile.TemporaryDirectory() as name:
        db = f"sqlite:///{name}/studies.db"
        with open_store(db) as store:
            study_id = pages_study.enter(store, made, probes)
            with serving(db, Path(name)) as server:
                assert server.process is not None
                with Viewer(server.port, server.process.pid, study_id) as viewer:
                    viewer.see()  # the server imports what it needs
                    first, again = [], []
                    for probe in made.probes[probes:]:
                        pages_study.enter_one(store, study_id, probe)
                        first.append(viewer.see())
                        again += [viewer.see() for _ in range(AGAIN)]
    return [
        _row("first after an event", probes, first),
        _row("again", probes, again),
    ]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """What is asked of them."""
    first, _ = rows
    whose = f"page of a study with {first['probes']} probes"
    return [
        Goal(name=f"{whose}, first view after an event: median, ms", goal=f"<= {MOST_FIRST_MS}",
             value=first["median_ms"]),
        Goal(name=f"{whose}, first view after an event: server's processor time, median, ms",
             goal=f"<= {MOST_FIRST_MS}", value=first["cpu_median_ms"]),
        Goal(name=f"{whose}: bytes", goal=f"<= {MOST_BYTES}", value=first["bytes"]),
    ]  # fmt: skip


class Viewer:
    """Looks at one study's page."""

    def __init__(self, port: int, pid: int, study_id: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._pid, self._path = pid, f"/studies/{study_id}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def see(self) -> dict[str, float]:
        """Milliseconds by the clock and of the server's processor, and bytes."""
        used, began = cpu_s(self._pid), time.perf_counter()
        self._connection.request("GET", self._path)
        response = self._connection.getresponse()
        content = response.read()
        wall_s = time.perf_counter() - began
        assert response.status == 200, content[:500]
        return {
            "ms": 1e3 * wall_s,
            "cpu_ms": 1e3 * (cpu_s(self._pid) - used),
            "bytes": len(content),
            "gzip_bytes": len(gzip.compress(content)),
        }


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used, to a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _row(view: str, probes: int, seen: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    def at(share: float, of: Callable[[Mapping[str, float]], float]) -> float:
        values = sorted(map(of, seen))
        return values[min(int(share * len(values)), len(values) - 1)]

    return {
        "view": view,
        "probes": probes,
        "views": len(seen),
        "median_ms": round(at(0.5, lambda one: one["ms"]), 1),
        "p90_ms": round(at(0.9, lambda one: one["ms"]), 1),
        "cpu_median_ms": round(at(0.5, lambda one: one["cpu_ms"]), 1),
        "cpu_p90_ms": round(at(0.9, lambda one: one["cpu_ms"]), 1),
        "bytes": int(max(one["bytes"] for one in seen)),
        "gzip_bytes": int(max(one["gzip_bytes"] for one in seen)),
        "load": os.getloadavg()[0],
    }
