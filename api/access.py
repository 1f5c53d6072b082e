"""One line of the log, and one latency, for each request."""

import logging
import re
import time
import uuid
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from api.limits import address_of
from api.metrics import Metrics

UNKNOWN_ROUTE = "(none)"
"""Where no route matches: what was asked for is no name for a series."""
CLIENT_CLOSED = 499
"""Status in logs and metrics, as nginx has it, where the client went before it was answered."""
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that are asked every few seconds: logged only when they fail."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger(__name__)


class AccessLog:
    """ASGI middleware around all others, so that it sees what they refuse, too.

    An answer says its request's id in ``X-Request-ID``: the client's own, if it is a short word.
    Lines name the route's template, and no query string or header, where secrets may be.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        began = time.perf_counter()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        # Not taken back: each request is a task, and the server's line about a mistake comes later.
        bind_contextvars(request=request_id)
        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = status or 500
            raise
        finally:
            self._note(scope, status or CLIENT_CLOSED, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
        self._metrics.observe(route, scope["method"], status, duration_s)
        if route in QUIET and status < 400:
            return
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


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex[:16]
