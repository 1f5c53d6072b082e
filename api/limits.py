"""What no request may exceed, and what every answer says: hosts, headers, bodies, rates.

Everything here is plain ASGI: Starlette's base class for middleware holds back event streams.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem
from api.settings import Settings

SECURITY_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of every answer that does not say otherwise. HSTS is for the proxy to say, which has the TLS."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""By which this machine calls itself. A page of another name that resolves to it is refused."""
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 (not bound to here)
"""Addresses to bind to that stand for all of the machine's."""

LONGEST_TARGET = 8 * 1024
"""Bytes of path and query; our longest are a few hundred."""
BODY_S = 30.0
"""Seconds for a body to arrive. A slow one holds a connection, but no thread."""
LINGER_S, LINGER_BODIES = 2.0, 16
"""Seconds for which more of a body that is too large is taken in, and thrown away, and how much, in
bodies of the largest size."""
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(:[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether an address to bind to, or a name in a URL, is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# -- hosts ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The names that callers may use for this service."""

    names: frozenset[str]
    """In small letters, without port; ``*.example.org`` for all below it, ``*`` for all."""
    any_address: bool
    """Whether any IP address will do: no page of another name can pretend to be one."""

    @classmethod
    def of(cls, settings: Settings) -> "Hosts":
        """This machine's own, what it is bound to, and what else is allowed."""
        names = {*LOOPBACK_NAMES, *settings.allowed_hosts}
        if settings.host in WILDCARDS:
            names.add(socket.gethostname())
        else:
            names.add(f"[{settings.host}]" if ":" in settings.host else settings.host)
        lower = frozenset(name.lower() for name in names)
        return cls(names=lower, any_address=settings.host in WILDCARDS)

    def allow(self, header: str) -> bool:
        """Whether a ``Host`` header names this service."""
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = found[1].lower()
        if name in self.names or "*" in self.names:
            return True
        if any(name.endswith(known[1:]) for known in self.names if known.startswith("*.")):
            return True
        return self.any_address and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


# -- middlewares ------------------------------------------------------------------------------


class SecurityHeaders:
    """Adds :data:`SECURITY_HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, add)


class Bounds:
    """Refuses requests by their first lines: another host's, another site's, or too long."""

    def __init__(self, app: ASGIApp, *, settings: Settings, open_paths: frozenset[str]) -> None:
        """``open_paths`` are answered under any name: whoever checks a process knows none."""
        self.app = app
        self.hosts = Hosts.of(settings)
        self.settings = settings
        self.open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "websocket":  # there are none here, so nothing would ask for a key
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await problem(*refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason."""
        raw = scope["headers"]
        most, most_bytes = self.settings.max_headers, self.settings.max_header_bytes
        if len(raw) > most or sum(len(name) + len(value) for name, value in raw) > most_bytes:
            return 431, f"a request may have {most} headers, of {most_bytes} bytes together"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            return 414, f"path and query may be of {LONGEST_TARGET} bytes together"
        if not scope["path"].isprintable():
            return 400, "the path must be of printable characters"
        if scope["path"] in self.open_paths:
            return None
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self.hosts.allow(host[0]):
            return 400, "the Host header does not name this service; TUNER_ALLOWED_HOSTS adds names"
        origin = headers.get("origin")
        if scope["method"] in UNSAFE and origin is not None and not _same_site(origin, host[0]):
            return 403, "a page of another origin may not do this"
        return None


def _same_site(origin: str, host: str) -> bool:
    """Whether a page is this service's own. Its scheme may differ: a proxy has the TLS."""
    return origin.partition("://")[2].lower() == host.lower()


class WholeBody:
    """Reads the body before anything is done with the request, and no more than is allowed."""

    def __init__(self, app: ASGIApp, *, most_bytes: int, within_s: float = BODY_S) -> None:
        self.app = app
        self.most_bytes = most_bytes
        self.within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        codings = Headers(scope=scope).getlist("content-encoding")
        if any(coding.strip().lower() not in ("", "identity") for coding in codings):
            detail = "the body must be sent as it is, without Content-Encoding"
            refusal = problem(415, detail, {"Accept-Encoding": "identity"})
            await refusal(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except _TooLargeError:
            await self._refuse(scope, receive, send)
        except TimeoutError:
            detail = f"the body did not arrive within {self.within_s:g} s"
            await problem(408, detail, {"Connection": "close"})(scope, receive, send)
        else:
            if body is not None:
                await self.app(scope, _replay(body, receive), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say that the body is too large, and close the connection once the caller has heard it.

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(LINGER_S, self.within_s)):
                while more and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of it; ``None`` when the caller has gone."""
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said[:20]) > self.most_bytes:
            raise _TooLargeError
        parts, size, more = [], 0, True
        async with asyncio.timeout(self.within_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size > self.most_bytes:
                    raise _TooLargeError
                parts.append(part)
                more = message.get("more_body", False)
        return b"".join(parts)


class _TooLargeError(Exception):
    pass


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body first, and then what else comes."""
    waiting: list[MutableMapping[str, Any]]
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


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


def address_of(scope: Scope) -> str:
    """The caller's IP address; empty where the server says none.

    A proxy that is believed may pass on whatever it was sent: what is no address is not taken.
    """
    given = (scope.get("client") or ("",))[0]
    try:
        return str(ipaddress.ip_address(given.partition("%")[0]))
    except ValueError:
        return ""


def network_of(address: str) -> str:
    """Whom an address stands for: itself, or of IPv6 its /64, which one subscriber has whole."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
