"""A study's page as it is first seen after an event, and as it is seen again, and the list of a
thousand studies: part of ``make bench-pages``.

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
MOST_MS = {50: 60, 500: 200}
"""Of the server's processor, for the first view of a study with so many probes."""
MOST_LIST_MS, MOST_BYTES = 60, 300_000
STUDIES = 1000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def rows(
    probes: Sequence[int] = tuple(MOST_MS), first_views: int = FIRST_VIEWS, studies: int = STUDIES
) -> list[dict[str, Any]]:
    """A row for the first view after an event and one for those after it, of studies with so many
    probes; and one for the list."""
    found = []
    for count in probes:
        found += _of_a_study(count, first_views)
    return [*found, _of_the_list(studies, first_views)]


def _of_a_study(probes: int, first_views: int, batch: int = 5040) -> list[dict[str, Any]]:
    made = pages_study.study(pages_study.question(batch), probes + first_views)
    with tempfile.TemporaryDirectory() as name:
        db = f"sqlite:///{name}/studies.db"
        with open_store(db) as store:
            study_id = pages_study.enter(store, made, probes)
            with serving(db, Path(name)) as server:
                assert server.process is not None
                with Viewer(server.port, server.process.pid, f"/studies/{study_id}") as viewer:
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


def _of_the_list(studies: int, views: int) -> dict[str, Any]:
    """The list, whose answers are kept, in each of several orders."""
    orders = ("-asked", "model", "-speed", "-memory")
    with tempfile.TemporaryDirectory() as name:
        db = f"sqlite:///{name}/studies.db"
        with open_store(db) as store:
            pages_study.enter_many(store, studies)
        with serving(db, Path(name)) as server:
            assert server.process is not None
            seen = []
            for order in orders:
                path = f"/?sort={order}"
                with Viewer(server.port, server.process.pid, path) as viewer:
                    viewer.see()
                    seen += [viewer.see() for _ in range(max(views // len(orders), 1))]
    return {**_row("list", 0, seen), "studies": studies}


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for row in rows:
        cpu_ms = row["cpu_median_ms"]
        if row["view"] == "list":
            name = f"list of {row['studies']} studies: server's processor time, median, ms"
            found.append(Goal(name=name, goal=f"<= {MOST_LIST_MS}", value=cpu_ms))
        elif row["view"] != "again":
            whose = f"page of a study with {row['probes']} probes"
            name = f"{whose}, first view after an event: server's processor time, median, ms"
            most = MOST_MS.get(row["probes"], max(MOST_MS.values()))
            found.append(Goal(name=name, goal=f"<= {most}", value=cpu_ms))
            found.append(Goal(name=f"{whose}: bytes", goal=f"<= {MOST_BYTES}", value=row["bytes"]))
    return found


class Viewer:
    """Looks at one page."""

    def __init__(self, port: int, pid: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._pid, self._path = pid, path

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
