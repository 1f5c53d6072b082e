"""Bounds of callers: of requests their hosts, other sites, headers, bodies and rates; connections.

The middlewares are plain ASGI: Starlette's base class for middleware holds back event streams. Its
own TrustedHostMiddleware knows no addresses of IPv6 and refuses with plain text.
"""

import asyncio
import ipaddress
import logging
import re
import resource
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.problems import ProblemCode, ProblemError, problem
from api.settings import Settings

# Names by which this machine calls itself. A page of another one that leads to it is refused.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Addresses to bind to that stand for all of the machine's.
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 (not bound to here)
# Bytes of path and query; our longest are a few hundred.
LONGEST_TARGET = 8 * 1024
# Seconds for a body to arrive. A slow one holds a connection, but no thread.
BODY_S = 30.0
# Seconds for which more of a body that is too large is taken in, and thrown away, and how much, in
# bodies of the largest size.
LINGER_S, LINGER_BODIES = 2.0, 16
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(:[0-9]{1,5})?")


# -- addresses --------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Tells whether an address to bind to, or a name in a URL, is of this machine only."""
    found = _ip_address(host.strip("[]"))
    return host.lower() == "localhost" if found is None else found.is_loopback


def address_of(scope: Scope) -> str:
    """The caller's IP address; empty where the server says none.

    A proxy that is believed may pass on whatever it was sent: what is no address is not taken.
    """
    given = (scope.get("client") or ("",))[0]
    return str(_ip_address(given.partition("%")[0]) or "")


def network_of(address: str) -> str:
    """The address itself, or of IPv6 its /64, which one subscriber has whole."""
    found = _ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and not found.ipv4_mapped:
        return str(ipaddress.ip_network((int(found), 64), strict=False))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class Hosts:
    """The names that callers may use for this service.

    They are this machine's own, what it is bound to, and what else is allowed: ``*.example.org``
    for all below it, ``*`` for all. Where it is bound to all addresses any IP address will do: no
    page of another name can pretend to be one.
    """

    def __init__(self, settings: Settings) -> None:
        names = {*LOOPBACK_NAMES, *settings.allowed_hosts}
        self.any_address = settings.host in WILDCARDS
        if self.any_address:
            names.add(socket.gethostname())
        else:
            names.add(f"[{settings.host}]" if ":" in settings.host else settings.host)
        self.names = frozenset(name.lower() for name in names)

    def allow(self, header: str) -> bool:
        """Tells whether a ``Host`` header names this service."""
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = found[1].lower()
        return (
            not self.names.isdisjoint((name, "*"))
            or any(name.endswith(known[1:]) for known in self.names if known.startswith("*."))
            or (self.any_address and _ip_address(name.strip("[]")) is not None)
        )


# -- middlewares ------------------------------------------------------------------------------


class Bounds:
    """Refuses requests by their first lines: another host's, another site's, or too long."""

    def __init__(self, app: ASGIApp, *, settings: Settings, open_paths: frozenset[str]) -> None:
        """``open_paths`` are answered under any name: whoever checks a process knows none."""
        self.app = app
        self.hosts = Hosts(settings)
        self.settings = settings
        self.open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none here, so nothing would ask for a key
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = self.app
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ProblemError as error:
                answer = error.response()
        await answer(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        raw = scope["headers"]
        most, most_bytes = self.settings.max_headers, self.settings.max_header_bytes
        if len(raw) > most or sum(len(name) + len(value) for name, value in raw) > most_bytes:
            detail = f"a request may have {most} headers, of {most_bytes} bytes together"
            raise ProblemError(431, detail)
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            raise ProblemError(414, f"path and query may be of {LONGEST_TARGET} bytes together")
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may have taken the other one, and the rest for a request of its own.
            detail = "a body has Content-Length or Transfer-Encoding, not both"
            raise ProblemError(400, detail, {"Connection": "close"})
        if not scope["path"].isprintable():
            raise ProblemError(400, "the path must be of printable characters")
        if scope["path"] in self.open_paths:
            return
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.hosts.allow(hosts[0]):
            detail = "the Host header does not name this service; TUNER_ALLOWED_HOSTS adds names"
            raise ProblemError(400, detail, code=ProblemCode.WRONG_HOST)
        # Of an origin the scheme may differ: a proxy has the TLS.
        own = f"://{hosts[0]}".lower()
        origin = headers.get("origin", own).lower()
        if scope["method"] in UNSAFE and origin[origin.find("://") :] != own:
            detail = "a page of another origin may not do this"
            raise ProblemError(403, detail, code=ProblemCode.OTHER_ORIGIN)


class WholeBody:
    """Reads the body before anything is done with the request, and no more than is allowed."""

    def __init__(self, app: ASGIApp, *, most_bytes: int, within_s: float = BODY_S) -> None:
        self.app = app
        self.most_bytes = most_bytes
        self.within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        codings = headers.getlist("content-encoding")
        if any(coding.strip().lower() not in ("", "identity") for coding in codings):
            detail = "the body must be sent as it is, without Content-Encoding"
            refusal = problem(415, detail, {"Accept-Encoding": "identity"})
            await refusal(scope, receive, send)
            return
        length = headers.get("content-length", "")
        body, more = bytearray(), True
        is_too_large = length.isdecimal() and int(length[:20]) > self.most_bytes
        try:
            async with asyncio.timeout(self.within_s):
                while more and not is_too_large:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    is_too_large = len(body) > self.most_bytes
        except TimeoutError:
            detail = f"the body did not arrive within {self.within_s:g} s"
            await problem(408, detail, {"Connection": "close"})(scope, receive, send)
            return
        if is_too_large:
            await self._refuse(scope, receive, send)
            return
        waiting: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Says that the body is too large, and closes the connection once the caller has heard it.

        Most read an answer only when they have sent everything, and one that is closed before
        that takes the answer with it: so what still comes is thrown away for a while.
        """

        async def hold(message: Message) -> None:
            is_body = message["type"] == "http.response.body"
            await send({**message, "more_body": True} if is_body else message)

        detail = f"a body may have {self.most_bytes} bytes"
        refusal = problem(413, detail, {"Connection": "close"}, allowed=detail)
        await refusal(scope, receive, hold)
        left, more = LINGER_BODIES * self.most_bytes, True
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LINGER_S, self.within_s)):
                while more and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# -- rates ------------------------------------------------------------------------------------


class Buckets:
    """A bucket of tokens for each caller: it fills at a rate, and a request takes one.

    For one event loop; each process of the service counts for itself.
    """

    def __init__(
        self,
        rate_per_s: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        most: int = 10_000,
    ) -> None:
        """``most`` callers are remembered; one that is forgotten begins with a full bucket."""
        self.rate_per_s, self.burst = rate_per_s, burst
        self.clock = clock
        self.most = most
        self._kept: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """Takes a token: 0, or the seconds until there will be one."""
        now = self.clock()
        tokens, at = self._kept.pop(who, (float(self.burst), now))
        tokens = min(self.burst, tokens + (now - at) * self.rate_per_s)
        wait_s = max(0.0, (1 - tokens) / self.rate_per_s)
        self._kept[who] = (tokens if wait_s else tokens - 1, now)
        if len(self._kept) > self.most:
            del self._kept[next(iter(self._kept))]
        return wait_s


# -- connections ------------------------------------------------------------------------------
#
# Whoever opens one needs no key for that, and no middleware sees it before its headers are there.
# So each is given seconds for them; and where more are open than may be, the oldest of those whose
# caller was not let in yet makes room: a caller who speaks at once is heard at any time.

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
                self._networks.append(ipaddress.ip_network(each, strict=False))
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
        return bool(address) and any(
            ipaddress.ip_address(address) in each for each in self._networks
        )

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
