"""How the service bears those who mean it ill: ``make bench-attack`` (15 minutes).

    python benchmarks/attack.py [--cases 10000] [--minutes 10]

Silent callers, more than there are files; event streams and long polls beside them; requests that
no client would send, with and without keys; and its memory while it is asked without end. The
server is a process of its own, started by ``tuner serve``, on SQLite. What is random has a seed.
"""

import argparse
import http.client
import json
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import service_writer
from common import Goal, report, show
from service_posts import body, p99
from service_server import Server, serving
from service_streams import healthz_ms

from tuner.store import open_store
from tuner.store.access import Keys
from tuner.store.tables import Scope

SILENT, FILES = 300, 256
STREAMS, POLLS = 200, 60
HEALTH_S = 20.0
SEED = 22
TIMEOUT_S = 60.0
# What a field of a question or a parameter of a path may be replaced by.
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), "", " ", "\0", "\ud800",
    "../../etc/passwd",
    "' OR 1=1 --", "<script>", "${jndi:ldap://x}", "a" * 5000, [], {}, [[]] * 50, {"": {"": {}}},
    "http://169.254.169.254/", "{{7*7}}", "%00", "st-000000000000", {"$ref": "#"}, "٣",
)  # fmt: skip
PATHS = (
    "/", "/tune", "/tune/{}", "/tune/{}/probes", "/tune/{}/events", "/tune/{}/export/{}",
    "/compare",
    "/studies/{}", "/studies/{}/what-if", "/new", "/audit", "/metrics", "/openapi.json", "/{}",
    "/static/{}", "/sign-in",
)  # fmt: skip
PARAMETERS = ("limit", "cursor", "state", "query", "wait", "terms", "ids", "before", "next", "x")
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS", "TRACE", "X")


def silent(port: int, number: int) -> list[socket.socket]:
    """Connections whose headers never end."""
    made = [socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) for _ in range(number)]
    for one in made:
        one.sendall(b"GET /tune HTTP/1.1\r\nHost: localhost\r\nX-a: ")
    return made


def waiting(port: int, paths: Sequence[str]) -> list[socket.socket]:
    """Requests that wait."""
    made = []
    for path in paths:
        one = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        made.append(one)
    return made


def connections(folder: Path) -> list[dict[str, Any]]:
    """How long ``/healthz`` takes among silent callers, and among those who wait."""
    db = f"sqlite:///{folder}/connections.db"
    with open_store(db) as store:
        ids = service_writer.ask(store, 20)
    streams = [f"/tune/{ids[n % 20]}/events" for n in range(STREAMS)]
    polls = [f"/tune/{ids[n % 20]}?wait=60" for n in range(POLLS)]
    found = []
    for what, files, quiet, paths in (
        (f"{SILENT} silent callers, {FILES} files", FILES, SILENT, ()),
        (f"{STREAMS} streams, {POLLS} long polls", 4096, 0, (*streams, *polls)),
    ):
        place = folder / str(files)
        place.mkdir()
        # a hard limit stays as it is here, and the server raises its own to that
        hard = f"ulimit -n {files}; "
        with with_hard(hard), serving(db, place) as server:
            held = waiting(server.port, paths)
            stop = threading.Event()
            held += silent(server.port, quiet)
            keeper = threading.Thread(target=_keep, args=(server.port, quiet, held, stop))
            keeper.start()
            took_ms = healthz_ms(server.port, HEALTH_S, 0.05)
            stop.set()
            keeper.join()
            log = (place / "serve.log").stat().st_size
            for one in held:
                one.close()
        found.append(
            {
                "callers": what,
                "healthz": len(took_ms),
                "median_ms": sorted(took_ms)[len(took_ms) // 2],
                "p99_ms": p99(took_ms),
                "log_kb": log / 1000,
                "load": os.getloadavg()[0],
            }
        )
    return found


@contextmanager
def with_hard(command: str) -> Iterator[None]:
    """Servers are started by a shell that limits their files for good."""
    import service_server

    before = service_server.TUNER
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "tuner"
        script.write_text(f'#!/bin/sh\n{command}exec "{before}" "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        service_server.TUNER = str(script)
        try:
            yield
        finally:
            service_server.TUNER = before


def _keep(port: int, number: int, held: list[socket.socket], stop: threading.Event) -> None:
    """Opens silent connections anew, a hundred a second, as those before them are closed."""
    while number and not stop.wait(0.01):
        one = held.pop(0)
        one.close()
        try:
            held += silent(port, 1)
        except OSError:
            held.append(one)


def cases(number: int, folder: Path) -> list[dict[str, Any]]:
    """Hostile requests, half of them with a key, by what was answered."""
    db = f"sqlite:///{folder}/cases.db"
    with open_store(db) as store:
        ids = service_writer.ask(store, 3)
        key = Keys(store.transactions).create("admin", Scope.ADMIN)[1]
    chance = random.Random(SEED)
    found: Counter[str] = Counter()
    wrong = []
    place = folder / "cases"
    place.mkdir()
    with serving(db, place, "--require-keys") as server:
        for count in range(number):
            with_key = bool(count % 2)
            method, path, headers, content = case(chance, ids)
            if with_key:
                headers = {**headers, "Authorization": f"Bearer {key}"}
            status = sent(server, method, path, headers, content)
            found[f"{'with' if with_key else 'without'} a key: {status // 100}xx"] += 1
            if status >= 500:
                wrong.append(f"{status} {method} {path[:200]} {content[:300]!r}")
        mistakes = (place / "serve.log").read_text().count("Traceback")
    for line in wrong[:20]:
        print(line)
    return [
        {
            "cases": number,
            "server_errors": len(wrong),
            "tracebacks": mistakes,
            **dict(sorted(found.items())),
        }
    ]


def case(chance: random.Random, ids: Sequence[str]) -> tuple[str, str, dict[str, str], bytes]:
    """One request: a question with something replaced, or a path with parameters."""

    def word() -> str:
        value = chance.choice((*HOSTILE, *ids))
        text = value if isinstance(value, str) else json.dumps(value)
        quoted = "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
        return quoted[: chance.choice((9, 300, 9000))]

    if chance.random() < 0.5:
        asked: Any = deepcopy(body(64))
        for _ in range(chance.randint(1, 3)):
            replace(chance, asked)
        content = json.dumps(asked).encode("utf-8", "surrogatepass")
        if chance.random() < 0.1:
            content = chance.choice(
                (b"\xff\xfe\xfa", content[:-2], b"[" * 100_000, content * 2, b"1" * 6000)
            )
        return "POST", "/tune", {"Content-Type": "application/json"}, content
    path = chance.choice(PATHS)
    while "{}" in path:
        path = path.replace("{}", chance.choice((chance.choice(ids), word())), 1)
    if chance.random() < 0.5:
        pairs = (f"{chance.choice(PARAMETERS)}={word()}" for _ in range(chance.randint(1, 3)))
        path += "?" + "&".join(pairs)
    path = path.replace("wait=", "wait=0")
    headers = {"Accept": chance.choice(("*/*", "text/html", "application/json"))}
    return chance.choice(METHODS), path, headers, b""


def replace(chance: random.Random, value: dict[str, Any]) -> None:
    """Puts something hostile into a question, at some depth, or beside what is there."""
    name = chance.choice((*value, "script", "model", "fidelity", "knobs", "budget", "auto_map"))
    if isinstance(value.get(name), dict) and chance.random() < 0.7:
        replace(chance, value[name])
    else:
        value[name] = deepcopy(chance.choice(HOSTILE))


def sent(server: Server, method: str, path: str, headers: Mapping[str, str], content: bytes) -> int:
    """The status of a request; a stream is left when it has begun, and 0 says that none came."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.putrequest(method, path or "/", skip_accept_encoding=True)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            connection.putheader(name, value)
        connection.endheaders(content)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def memory(minutes: float, folder: Path) -> list[dict[str, Any]]:
    """The server's memory after a minute of polls, streams and posts, and at the end."""
    db = f"sqlite:///{folder}/memory.db"
    with open_store(db) as store:
        ids = service_writer.ask(store, 20)
    place = folder / "memory"
    place.mkdir()
    with serving(db, place) as server:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        began, requests, after_a_minute = time.monotonic(), 0, 0
        questions = [json.dumps(body(size)).encode() for size in (64, 128, 256, 512)]
        while (passed := time.monotonic() - began) < 60 * minutes:
            study = ids[requests % len(ids)]
            for path in (f"/tune/{study}", f"/tune/{study}/probes", "/tune?limit=50", "/",
                         f"/studies/{study}", f"/tune/{study}/events"):  # fmt: skip
                sent(server, "GET", path, {}, b"")
            posted = questions[requests % len(questions)]
            sent(server, "POST", "/tune", {"Content-Type": "application/json"}, posted)
            requests += 7
            if passed >= 60 and not after_a_minute:
                after_a_minute = process.memory_info().rss
        at_end = process.memory_info().rss
    return [
        {
            "minutes": minutes,
            "requests": requests,
            "after_a_minute_mib": after_a_minute / 2**20,
            "at_end_mib": at_end / 2**20,
            "growth_%": 100 * (at_end / after_a_minute - 1),
            "load": os.getloadavg()[0],
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0, help="of requests; over one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        among = connections(Path(name))
        show("connections", among)
        hostile = cases(options.cases, Path(name))
        show("hostile requests", hostile)
        grown = memory(options.minutes, Path(name))
    goals = [
        goal
        for row in among
        for goal in (
            Goal(
                name=f"/healthz with {row['callers']}: p99, ms", goal="<= 100", value=row["p99_ms"]
            ),
            Goal(name=f"log with {row['callers']}: kB", goal="<= 100", value=row["log_kb"]),
        )
    ]
    errors = hostile[0]["server_errors"]
    goals += [
        Goal(name="hostile requests: number", goal=">= 10000", value=hostile[0]["cases"]),
        Goal(name="hostile requests: server errors", goal="<= 0", value=errors),
        Goal(name="memory under requests: minutes", goal=">= 10", value=grown[0]["minutes"]),
        Goal(name="memory after the first minute: growth, %", goal="<= 10",
             value=grown[0]["growth_%"]),
    ]  # fmt: skip
    report("attack", goals, among, {"hostile": hostile, "memory": grown})


if __name__ == "__main__":
    main()
