"""Middlewares around all others: one line of the log and one latency for each request, HEAD
wherever there is GET, and headers that every answer has.

Plain ASGI: Starlette's base class for middleware holds back event streams.
"""

import logging
import re
import time
import uuid
from collections.abc import Mapping

import anyio
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from api.limits import address_of
from api.ops import Metrics

# Of every answer that does not say otherwise. HSTS is for the proxy to say, which has the TLS.
SECURITY_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

# Route in logs and metrics where none matches: paths that callers make up must name no series.
UNKNOWN_ROUTE = "(none)"
# Status in logs and metrics, as nginx has it, where the client went before it was answered.
CLIENT_CLOSED = 499
# Routes that are asked every few seconds: logged only when they fail.
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger("api.access")


class AccessLog:
    """Notes each request, refused ones too, so it goes around all other middlewares.

    An answer names its request in ``X-Request-ID``: by the client's own id, if it is a short word.
    Lines name the route's template, and no query string or header, where secrets may be.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex[:16]
        began = time.perf_counter()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        # Not unbound: each request is a task, and the server's line about a mistake comes later.
        bind_contextvars(request=request_id)
        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = status or 500
            raise
        finally:
            status, duration_s = status or CLIENT_CLOSED, time.perf_counter() - began
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            self._metrics.observe(route, scope["method"], status, duration_s)
            if route not in QUIET or status >= 400:
                fields = {
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "duration_s": round(duration_s, 4),
                    "client": address_of(scope),
                    "actor": scope.get("state", {}).get("actor", ""),
                }
                if study := scope.get("path_params", {}).get("study_id"):
                    fields["study"] = study
                log.info("answered", extra=fields)


class Heads:
    """Answers HEAD as GET without the body: what is inside sees a GET.

    ``methods=["GET", "HEAD"]`` at each route would document every operation twice, and leave
    event streams open for callers who have heard all that they asked for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        with anyio.CancelScope() as body:

            async def head(message: Message) -> None:
                if message["type"] != "http.response.start":
                    return
                scope["method"] = "HEAD"  # the server asks it whether a body is to come
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                if not any(name == b"content-length" for name, _ in message["headers"]):
                    body.cancel()  # a stream, which would go on and on

            scope["method"] = "GET"
            try:
                await self._app(scope, receive, head)
            finally:
                scope["method"] = "HEAD"


class SecurityHeaders:
    """Adds :data:`SECURITY_HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
