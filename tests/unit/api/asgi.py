"""ASGI applications called by hand: requests that no client library would send."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

HOST = ("host", "localhost")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an application sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def connection(method="GET", path="/tune", headers=(HOST,), *, query="", client="127.0.0.1"):
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": (client, 50000) if client is not None else None,
        "server": ("127.0.0.1", 8765),
    }


def body_of(*parts):
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": index < last}
        for index, part in enumerate(parts)
    ]


async def send_to(app, scope, messages=()):
    """Calls ``app`` once; ``None`` when it sent nothing. After the messages nothing comes."""
    waiting, sent = list(messages), []

    async def receive():
        return waiting.pop(0) if waiting else await asyncio.Future()

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return None
    start, *rest = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], headers, b"".join(part.get("body", b"") for part in rest))


def call(app, scope, messages=None):
    """Calls ``app`` once, with an empty body unless another is given."""
    given = body_of(b"") if messages is None else messages
    answer = asyncio.run(send_to(app, scope, given))
    assert answer is not None
    return answer


async def echo(scope, receive, send):
    """An application that answers with the body, as it came in its first message."""
    message = await receive()
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    more = [b"+more"] if message.get("more_body") else []
    await send({"type": "http.response.body", "body": b"".join([message["body"], *more])})
