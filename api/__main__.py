"""Serve studies: ask questions, follow them, read and export answers.

    python -P -m api --db sqlite:///studies.db --port 8765

Settings are options, or else TUNER_* variables, or else those in a file .env. SIGTERM ends it
once what is being answered is; exit codes are those of the command line: 0 ended by SIGTERM, 130
by Ctrl-C, 1 it cannot be served, 2 a setting is wrong.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from errno import EADDRINUSE
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI
from threadpoolctl import threadpool_limits

from api.app import create_app
from api.limits import BACKLOG, Complaints, Connections, Protocol, most_connections
from api.security import WRITE_S, check_bind
from api.settings import Settings, read_settings
from tuner.cli.errors import report
from tuner.cli.serve import noted_address
from tuner.errors import TunerError, UsageError
from tuner.logs import set_up_logs
from tuner.store import open_store
from tuner.store.access import Keys

# Seconds that requests have to end after SIGTERM; event streams and long polls end at once.
STOP_S = 10
# Seconds after which a thread that computes lets others on, a fifth of Python's own: what takes a
# tenth of a second to answer must not keep waiting what takes a millisecond.
SWITCH_S = 0.001
# Objects made, beyond those that are gone, from which on garbage is looked for: a page of hundreds
# of probes makes some 40,000, hardly any of them in cycles, and with Python's own 700 a tenth of
# its time goes into looking.
YOUNGEST = 50_000
# How lines of the server's begin that tell to install a library, or what strangers send.
HIDDEN = ("Unsupported upgrade request", "No supported WebSocket library", "Invalid HTTP request")
# Exit code of Ctrl-C.
INTERRUPTED = 130

log = logging.getLogger("api")


def main() -> int:
    """Parse the command line and serve until stopped; the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m api", description=__doc__)
    parser.add_argument("--db", help="address of the database; by default the user's own")
    parser.add_argument("--host", help="address to bind to; by default 127.0.0.1")
    parser.add_argument("--port", help="port to bind to; by default 8765, 0 for any")
    parser.add_argument(
        "--require-keys",
        action=argparse.BooleanOptionalAction,
        help="whether every caller needs a key; by default unless HOST is a loopback address",
    )
    parser.add_argument("--json", action="store_true", help="print where it is reached, as JSON")
    options = parser.parse_args()
    given = {name: value for name, value in vars(options).items() if value is not None}
    as_json = given.pop("json")
    signal.signal(signal.SIGTERM, _end)
    sys.setswitchinterval(SWITCH_S)
    # One thread computes at a time (answers.py), of matrices too small for several, which would
    # wait for each other: a page of 500 probes takes 0.17 s of processor with one, 0.23 with two.
    threadpool_limits(limits=1, user_api="blas")
    try:
        set_up_logs("api")
        serve(read_settings(**given), as_json=as_json)
    except TunerError as error:
        return report(error, as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Serve until a signal asks to end; ``as_json``: say on stdout where it is reached."""
    with open_store(settings.db, patience_s=WRITE_S) as store:
        check_bind(settings, Keys(store.transactions))
        with _listen(settings.host, settings.port) as listening:
            app = create_app(store, settings)
            # What was imported stays: looking through it for garbage, again and again, would take
            # a tenth of a second each time, in the middle of some request.
            gc.collect()
            gc.freeze()
            gc.set_threshold(YOUNGEST)
            with noted_address(settings.db, _url(listening)):
                Server(app, settings, as_json=as_json).run([listening])


class Server(uvicorn.Server):
    """Says where it is reached, and has those who wait answered before it ends."""

    def __init__(self, app: FastAPI, settings: Settings, *, as_json: bool) -> None:
        # There are no WebSockets here: who asks for one gets the page, and nobody is told to
        # install any.
        hidden = logging.getLogger("uvicorn.error")
        hidden.addFilter(lambda record: not record.getMessage().startswith(HIDDEN))
        connections = Connections(most_connections(), settings.proxies)
        self._state = app.state
        self._as_json = as_json
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                http=partial(Protocol, connections),  # type: ignore[arg-type]
                loop="asyncio",
                backlog=BACKLOG,
                ws="none",
                log_config=None,  # ours are set up, and name requests by their routes
                access_log=False,
                server_header=False,
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips=list(settings.proxies),
                h11_max_incomplete_event_size=settings.max_header_bytes,
                timeout_graceful_shutdown=STOP_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Complaints())
        await super().startup(sockets)
        url = _url((sockets or [])[0])
        log.info("serving at %s", url)
        if self._as_json:
            print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)  # noqa: T201

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: those who wait for something to happen are told at once."""
        log.info("ending")
        self._state.stopping()
        await super().shutdown(sockets)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(
            (host, port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=family is socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why = f"cannot be bound: {error.strerror or error}"
        if error.errno == EADDRINUSE:
            why = "is in use, perhaps by another service: --port takes another, 0 any that is free"
        raise UsageError("host", f"{host}:{port}", why) from error


def _end(number: int, frame: FrameType | None) -> None:
    """Before and after the server, which has handlers of its own, and raises the signal again."""
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
