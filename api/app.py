"""The FastAPI application: questions are asked, and studies seen, over HTTP.

Around all routes: one line of the log and one latency for each request, HEAD wherever there is GET,
and headers that every answer has.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version

import anyio
from fastapi import Depends, FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from api import asks, openapi, studies
from api.inputs import Context, known_query, single_headers
from api.limits import Bounds, WholeBody, address_of
from api.ops import Metrics, operations_router
from api.pages import render, routes
from api.pages.people import ForPeople
from api.problems import add_problems
from api.security import OPEN_PATHS, Gate, keys_needed
from api.settings import Settings
from tuner.client.parts import build_models
from tuner.errors import TunerError
from tuner.store import Store
from tuner.store.access import LOCAL, Audit, Keys
from tuner.store.figures import Figures, read_figures

# Raised when what was asked so far is answered otherwise.
API_VERSION = "1"
SUMMARY = "The fastest training settings that fit in memory"
# zlib's own default; 9 takes three times as long for a hundredth.
COMPRESSION = 6
# Seconds between two looks for what is too old to be kept.
TIDY_S = 24 * 3600
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

log, access = logging.getLogger("api"), logging.getLogger("api.access")


def create_app(store: Store, settings: Settings) -> FastAPI:
    """The application over one open store.

    ``app.state.stopping()`` ends all waiting; call it when the server begins to stop."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
        tidying = asyncio.create_task(tidy(store, settings.keep_days), name="tidy")
        yield
        tidying.cancel()

    def figures() -> Figures:
        return read_figures(store.transactions)

    build_models()
    keys = Keys(store.transactions)
    context = Context.of(store, settings)
    app = FastAPI(
        title="tuner",
        summary=SUMMARY,
        version=API_VERSION,
        dependencies=[Depends(known_query), Depends(single_headers)],
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to http, where a proxy has the TLS, and with the key
        lifespan=lifespan,
    )
    app.state.context, app.state.stopping = context, context.poller.stop
    metrics = Metrics(figures, version=version("tuner"))
    for router in (
        studies.router,
        asks.router,
        openapi.router,
        operations_router(store, metrics),
        routes.router,
        routes.sign_in_router(keys),
        render.router,
    ):
        app.include_router(router)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    add_problems(app, SECURITY_HEADERS)
    protect(app, settings, keys)
    app.add_middleware(GZipMiddleware, compresslevel=COMPRESSION)
    app.add_middleware(Heads)
    app.add_middleware(AccessLog, metrics=metrics)
    return app


async def tidy(store: Store, keep_days: int | None) -> None:
    """Deletes once a day what is older than is kept, and what is too much of the audit."""
    audit, thread = Audit(store.transactions), anyio.CapacityLimiter(1)
    while True:
        try:
            await anyio.to_thread.run_sync(audit.trim, limiter=thread)
            if keep_days is not None:
                prune = partial(store.prune, timedelta(days=keep_days), by=f"{LOCAL} service")
                await anyio.to_thread.run_sync(prune, limiter=thread)
        except TunerError as error:
            log.warning("%s; what is old is deleted tomorrow", error)
        await asyncio.sleep(TIDY_S)


def protect(app: FastAPI, settings: Settings, keys: Keys) -> None:
    # The last one that is added is the first one to see a request.
    app.add_middleware(WholeBody, most_bytes=settings.max_body_bytes)
    app.add_middleware(Gate, needed=keys_needed(settings), settings=settings, keys=keys)
    app.add_middleware(Bounds, settings=settings, open_paths=OPEN_PATHS)
    app.add_middleware(ForPeople)
    app.add_middleware(SecurityHeaders)


# -- around all routes: plain ASGI, for Starlette's base class holds back event streams ------------


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
                access.info("answered", extra=fields)


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
