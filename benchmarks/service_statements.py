"""Whether listeners cost the database anything: part of ``make bench-service``.

Statements are counted as SQLAlchemy sends them, in a server within this process, while one listener
and then two hundred follow the same events of a study of their own. The service looks by the
clock, and so events come by it, too: a run that takes longer has more looks, and not dearer ones.
"""

import asyncio
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import service_writer
from common import Goal
from service_listener import SILENCE_S, Heard, Opened, follow
from sqlalchemy import Engine, event

from api.__main__ import Server
from api.app import create_app
from api.settings import Settings
from tuner.store import Store, open_store

LISTENERS = (1, 200)
PROBES = 40
PAUSE_S = 0.2
"""From one probe to the next; the service looks four times a second."""
LOOK_S = 0.05
MOST_GROWTH = 1.1
"""Of statements for each event, with all listeners over those with one: a run may have a look more
than the other."""


def rows(probes: int = PROBES, listeners: Sequence[int] = LISTENERS) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        db = f"sqlite:///{Path(folder)}/studies.db"
        return [asyncio.run(_row(db, each, probes)) for each in listeners]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    few, many = rows[0], rows[-1]
    name = f"statements for each event, {many['listeners']} listeners over {few['listeners']}"
    value = many["statements_per_event"] / few["statements_per_event"]
    told = sum(row["listeners"] * row["events"] - row["told"] for row in rows)
    return [
        Goal(name=name, goal=f"<= {MOST_GROWTH}", value=value),
        Goal(name="events not told while statements were counted", goal="<= 0", value=told),
    ]


async def _row(db: str, listeners: int, probes: int) -> dict[str, Any]:
    with open_store(db) as served, open_store(db) as writing, listening_socket() as listening:
        [study_id] = service_writer.ask(writing, 1, first=listeners)
        server = Server(create_app(served, Settings(db=db)), Settings(db=db), as_json=False)
        serving = asyncio.create_task(server.serve([listening]))
        heard = [Heard(study_id=study_id) for _ in range(listeners)]
        with counted(served.transactions.engine) as statements:
            port = listening.getsockname()[1]
            connecting = await _follow(port, heard, statements, writing, probes)
            sent = len(statements) - connecting
        server.should_exit = True
        await serving
        events = len(writing.events(study_id))
    return {
        "listeners": listeners,
        "events": events,
        "told": sum(len(one.ids) for one in heard),
        "statements_until_connected": connecting,
        "statements": sent,
        "statements_per_event": sent / events,
        "load": os.getloadavg()[0],
    }


async def _follow(
    port: int, heard: Sequence[Heard], statements: list[str], store: Store, probes: int
) -> int:
    """Have all connected and told what happened before, and let more happen; the statements until
    then."""
    before = len(store.events(heard[0].study_id))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    url, opened, turns = f"http://127.0.0.1:{port}", Opened(len(heard)), random.Random()
    async with (
        httpx.AsyncClient(base_url=url, timeout=SILENCE_S, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        for one in heard:
            group.create_task(follow(client, one, opened, turns, 0))
        while any(len(one.ids) < before for one in heard):  # each one's first look is its own
            await asyncio.sleep(LOOK_S)
        connecting = len(statements)
        await asyncio.to_thread(_write, store, heard[0].study_id, probes)
    return connecting


def _write(store: Store, study_id: str, probes: int) -> None:
    db, studies = store.url, [study_id]
    service_writer.run({"db": db, "studies": studies, "probes": probes, "pause_s": PAUSE_S})


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """A list to which every statement is added that an engine sends."""
    statements: list[str] = []

    def add(conn: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", add)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", add)


def listening_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)
