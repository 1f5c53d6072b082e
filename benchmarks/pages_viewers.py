"""What viewers of a study cost that goes on: part of ``make bench-pages``.

Each opens the page and then its stream of changes with the version that it has, as the page's
script does, in a server within this process. Then one more probe is done, again and again, each
after all viewers were told of the one before, and the study ends. Statements are counted as
SQLAlchemy sends them; those by which the service looks again and again whether anything happened
come by the clock, and are counted apart. Processor seconds are those of the server and of all
viewers together.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx
import pages_study
from common import Goal
from service_statements import counted, listening_socket

from api.__main__ import Server
from api.app import create_app
from api.settings import Settings
from tuner.core.study import Probe, Study, StudyState
from tuner.store import Store, open_store

VIEWERS = (1, 100)
PROBES = 8
"""That are done while they look on."""
LOOK_S = 0.02
PATIENCE_S = 120.0
MOST_GROWTH = 1.0
LIVE = re.compile(r'data-live="([^"]+)"')


def rows(
    before: int = pages_study.PROBES,
    viewers: Sequence[int] = VIEWERS,
    probes: int = PROBES,
) -> list[dict[str, Any]]:
    """A row for each number of viewers, of a study that has so many probes before."""
    made = pages_study.study(count=before + probes)
    found = []
    for each in viewers:
        with tempfile.TemporaryDirectory() as folder:
            db = f"sqlite:///{folder}/studies.db"
            found.append(asyncio.run(_row(db, made, before, each)))
    return found


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    few, many = rows[0], rows[-1]
    name = f"statements for each event, {many['viewers']} viewers of a study over {few['viewers']}"
    value = many["statements_per_event"] / few["statements_per_event"]
    missed = sum(row["viewers"] - row["told_the_end"] for row in rows)
    return [
        Goal(name=name, goal=f"<= {MOST_GROWTH}", value=round(value, 3)),
        Goal(name="viewers who were not told of a study's end", goal="<= 0", value=missed),
    ]


class Seen:
    """What one viewer has seen."""

    def __init__(self) -> None:
        self.changes = 0
        """How often it was sent something."""
        self.bytes = 0
        """Of all that it was sent."""
        self.is_over = False
        """Whether it was told of the end."""


async def _row(db: str, made: Study, before: int, viewers: int) -> dict[str, Any]:
    with open_store(db) as served, open_store(db) as writing, listening_socket() as listening:
        study_id = pages_study.enter(writing, made, before)
        settings = Settings(db=db)
        server = Server(create_app(served, settings), settings, as_json=False)
        serving = asyncio.create_task(server.serve([listening]))
        seen = [Seen() for _ in range(viewers)]
        events = len(writing.events(study_id))
        with counted(served.transactions.engine) as statements:
            port = listening.getsockname()[1]
            going_on = _going_on(writing, study_id, made.probes[before:], seen)
            used = await _look_on(port, study_id, seen, statements, going_on)
        server.should_exit = True
        await serving
        happened = len(writing.events(study_id)) - events
    looks, others = used["looks"], used["others"]
    return {
        "viewers": viewers,
        "probes": before,
        "events": happened,
        "told_the_end": sum(one.is_over for one in seen),
        "changes": sum(one.changes for one in seen),
        "bytes_per_change": round(
            sum(one.bytes for one in seen) / sum(one.changes for one in seen)
        ),
        "statements_per_event": round(others / happened, 2),
        "looks": looks,
        "cpu_s_per_event": round(used["cpu_s"] / happened, 3),
        "load": os.getloadavg()[0],
    }


async def _look_on(
    port: int,
    study_id: str,
    seen: Sequence[Seen],
    statements: list[str],
    going_on: Coroutine[Any, Any, None],
) -> dict[str, float]:
    """Have all look on while the study goes on; what that took."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    opened = asyncio.Semaphore(0)
    async with (
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, limits=limits
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for one in seen:
            group.create_task(_watch(client, study_id, one, opened))
        for _ in seen:
            await opened.acquire()
        statements.clear()
        began = time.process_time()
        async with asyncio.timeout(PATIENCE_S):
            await going_on
        cpu_s = time.process_time() - began
    looks = sum(map(_is_look, statements))
    return {"looks": looks, "others": len(statements) - looks, "cpu_s": cpu_s}


async def _watch(
    client: httpx.AsyncClient, study_id: str, seen: Seen, opened: asyncio.Semaphore
) -> None:
    """The page, and what it is sent until the study's end."""
    page = (await client.get(f"/studies/{study_id}")).text
    found = LIVE.search(page)
    assert found is not None, "the page of a study that goes on says where its changes come from"
    async with client.stream("GET", found[1].replace("&amp;", "&")) as response:
        assert response.status_code == 200
        opened.release()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                seen.changes += 1
                seen.bytes += len(line)
                seen.is_over = not json.loads(line.removeprefix("data: "))["is_open"]


async def _going_on(
    store: Store, study_id: str, probes: Sequence[Probe], seen: Sequence[Seen]
) -> None:
    """Some more probes and the end, each after all were told of the one before."""
    for number, probe in enumerate(probes, start=1):
        await asyncio.to_thread(pages_study.enter_one, store, study_id, probe)
        await _until(lambda number=number: all(one.changes >= number for one in seen))  # type: ignore[misc]
    await asyncio.to_thread(store.move, study_id, StudyState.DONE, "the budget is spent")
    await _until(lambda: all(one.is_over for one in seen))


async def _until(ready: Callable[[], bool]) -> None:
    while not ready():
        await asyncio.sleep(LOOK_S)


def _is_look(statement: str) -> bool:
    """Whether the service asks by the clock where studies stand, or frames a transaction."""
    frames = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")
    return statement.lstrip().upper().startswith(frames) or "newest_event" in statement
