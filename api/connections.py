"""Connections: how long a caller may be silent, and how many may be open.

Whoever opens a connection needs no key for that, and no middleware sees it before its headers are
there. So each is given seconds for them; and where more are open than may be, the oldest of those
whose caller was not let in yet makes room: a caller who speaks at once is heard at any time.
"""

import asyncio
import logging
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from api.limits import network_of

# Seconds for a request's headers, from the connection's or the last answer's moment on.
HEADERS_S = 10.0
# Connections that may wait to be accepted. asyncio accepts as many before it looks at any.
BACKLOG = 128
# Files that are not connections: of the database, the log, and the interpreter.
OTHER_FILES = 64
# Open files that are asked of the system, where it allows more; each costs memory.
MOST_FILES = 65_536
# Connections of one address whose callers were not let in: of all browsers behind one address.
MOST_EACH = 100
# Seconds that a caller has before that: a hundred who come at once, as after a restart, are heard.
GRACE_S = 2.0
# Seconds between two lines about the same trouble.
QUIET_S = 60.0
# How asyncio begins to tell that it could not accept a connection.
NO_FILES = "socket.accept() out of system resource"

log = logging.getLogger("api")


def most_connections() -> int:
    """Raises the limit of open files as far as may be; the connections that then may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, files - BACKLOG - OTHER_FILES)


class Connections:
    """The open connections of one event loop, those of each address in the order of their age."""

    def __init__(
        self,
        most: int,
        proxies: Collection[str] = (),
        *,
        most_each: int = MOST_EACH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``proxies``, addresses and networks as uvicorn reads them, stand for many callers, and
        may have as many connections as all."""
        self.most, self.most_each = most, most_each
        self._proxies = frozenset(proxies)
        self._networks = []
        for each in proxies:
            with suppress(ValueError):  # such as * or a socket's path
                self._networks.append(ip_network(each, strict=False))
        self._clock = clock
        self._open: dict[Protocol, str] = {}
        self._of: defaultdict[str, dict[Protocol, float]] = defaultdict(dict)
        self._told_at = float("-inf")
        self._closed = 0

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, one: "Protocol") -> None:
        """Adds a connection, and closes an older one where there are too many."""
        address = one.client[0] if one.client else ""
        network = network_of(address)
        theirs, now = self._of[network], self._clock()
        self._open[one], theirs[one] = network, now
        if len(theirs) > self.most_each and not self._is_proxy(address):
            silent = (one for one, since in theirs.items() if since <= now - GRACE_S)
            strangers = [one for one in silent if not (one.is_let_in or one.is_asking)]
            if len(strangers) >= self.most_each:
                self._close(strangers[0])
                return
        if len(self._open) > self.most:
            self._close(next((other for other in self._open if not other.is_let_in), one))

    def _is_proxy(self, address: str) -> bool:
        if address in self._proxies or "*" in self._proxies:
            return True
        return bool(address) and any(ip_address(address) in each for each in self._networks)

    def leave(self, one: "Protocol") -> None:
        network = self._open.pop(one, None)
        if network is not None:
            self._of[network].pop(one, None)
            if not self._of[network]:
                del self._of[network]

    def _close(self, one: "Protocol") -> None:
        self.leave(one)
        one.transport.abort()
        self._closed += 1
        if self._clock() - self._told_at >= QUIET_S:
            self._told_at = self._clock()
            log.warning(
                "%d connections were closed before their callers were let in: more were open than"
                " %d, or than %d of one address",
                self._closed,
                self.most,
                self.most_each,
            )
            self._closed = 0


class Protocol(H11Protocol):
    """A connection whose caller has :data:`HEADERS_S` for each request's headers."""

    def __init__(self, connections: Connections, **of_server: Any) -> None:
        super().__init__(**of_server)
        self._kept_in = connections
        self._silence: asyncio.TimerHandle | None = None

    @property
    def is_let_in(self) -> bool:
        """True where the last request's caller was let in (:class:`api.security.Gate`)."""
        return self.scope is not None and self.scope["state"].get("caller") is not None

    @property
    def is_asking(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._kept_in.enter(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept_in.leave(self)
        if self._silence is not None:
            self._silence.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        """Has the seconds begin, unless a request is being answered."""
        if self.is_asking:
            if self._silence is not None:
                self._silence.cancel()
                self._silence = None
        elif self._silence is None:
            self._silence = self.loop.call_later(HEADERS_S, self._end)

    def _end(self) -> None:
        # A caller who was let in may still read an answer; the server closes it when it is idle.
        if self.is_let_in:
            self.transport.close()
        else:
            self.transport.abort()


class Complaints:
    """Handles what the event loop cannot: that files are used up is told once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not str(context.get("message")).startswith(NO_FILES):
            loop.default_exception_handler(context)
        elif self._clock() - self._told_at >= QUIET_S:
            self._told_at = self._clock()
            log.error("no connection can be accepted: %s", context.get("exception"))
