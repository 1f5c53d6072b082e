"""Listeners to studies that break off again and again: part of ``make bench-service``.

    python benchmarks/service_listener.py '{"url": "...", "streams": [...], "polls": [...], ...}'

Streams of events break off after a few events, by turns that are drawn with a seed, and are taken
up where they were by ``Last-Event-ID``. Long polls are sent until their study is done, every other
one with ``If-None-Match``. It says ``open`` when all are, and prints what it saw as JSON.
"""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

RETRY_S = 0.2
SILENCE_S = 45.0
"""Without a word on a stream, on which something comes every 15 seconds."""
WAIT_S = 30
ENDS = frozenset({"done", "failed", "cancelled"})


@dataclass(kw_only=True)
class Heard:
    """What one listener was told."""

    study_id: str  # the study it listened to
    ids: list[int] = field(default_factory=list)  # of events, in the order in which they came
    connections: int = 0  # how often it was connected
    errors: list[str] = field(default_factory=list)
    """What should not be: answers of another status, events that contradict themselves."""


class Opened:
    """Counts those who are connected for the first time."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.all = asyncio.Event()
        """Set once all are."""

    def one(self) -> None:
        """One more is."""
        self.left -= 1
        if self.left == 0:
            self.all.set()


async def follow(
    client: httpx.AsyncClient, heard: Heard, opened: Opened, turns: random.Random, most: int
) -> None:
    """Listen to a study until its end, ``most`` events at a time or fewer; 0 for no end."""
    ended = False
    while not ended:
        left = turns.randint(1, most) if most else -1
        try:
            async for event in _stream(client, heard, opened):
                heard.ids.append(event["id"])
                ended = event["kind"] == "study" and event["data"]["state"] in ENDS
                left -= 1
                if left == 0:
                    break
        except httpx.TransportError:
            await asyncio.sleep(RETRY_S)


async def _stream(
    client: httpx.AsyncClient, heard: Heard, opened: Opened
) -> AsyncIterator[dict[str, Any]]:
    """Events of one connection, each when it is whole."""
    path = f"/tune/{heard.study_id}/events"
    headers = {"Last-Event-ID": str(heard.ids[-1])} if heard.ids else {}
    async with client.stream("GET", path, headers=headers) as response:
        if response.status_code != 200:
            heard.errors.append(f"status {response.status_code}")
            await asyncio.sleep(RETRY_S)
            return
        heard.connections += 1
        if heard.connections == 1:
            opened.one()
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                event: dict[str, Any] = json.loads(fields["data"])
                if (str(event["id"]), event["kind"]) != (fields["id"], fields["event"]):
                    heard.errors.append(f"event {fields['id']} says it is {event['id']}")
                fields = {}
                yield event


async def poll(client: httpx.AsyncClient, heard: Heard, opened: Opened, *, tagged: bool) -> None:
    """Ask for a study until it is done; with its tag, to be told of every change."""
    tag, state, path = "", "", f"/tune/{heard.study_id}"
    opened.one()
    while state not in ENDS:
        headers = {"If-None-Match": tag} if tag and tagged else {}
        try:
            response = await client.get(path, params={"wait": WAIT_S}, headers=headers)
        except httpx.TransportError:
            await asyncio.sleep(RETRY_S)
            continue
        heard.connections += 1
        if response.status_code == 200:
            state, tag = response.json()["state"], response.headers["etag"]
        elif response.status_code != 304:
            heard.errors.append(f"status {response.status_code}")
            await asyncio.sleep(RETRY_S)


async def listen(given: dict[str, Any]) -> dict[str, Any]:
    """Listen to all studies until their ends, and tell what was heard."""
    streams = [Heard(study_id=study_id) for study_id in given["streams"]]
    polls = [Heard(study_id=study_id) for study_id in given["polls"]]
    opened, turns = Opened(len(streams) + len(polls)), random.Random(given["seed"])
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=given["url"], timeout=SILENCE_S, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        for heard in streams:
            group.create_task(follow(client, heard, opened, turns, given["most"]))
        for number, heard in enumerate(polls):
            group.create_task(poll(client, heard, opened, tagged=number % 2 == 1))
        await opened.all.wait()
        print("open", flush=True)
    return {
        "streams": [asdict(heard) for heard in streams],
        "polls": [asdict(heard) for heard in polls],
    }


def main() -> None:
    print(json.dumps(asyncio.run(listen(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
