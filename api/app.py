"""The FastAPI application: questions are asked, and studies seen, over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version

import anyio
from fastapi import Depends, FastAPI
from starlette.middleware.gzip import GZipMiddleware

from api import asks, openapi, studies
from api.inputs import Context, known_query, single_headers
from api.limits import Bounds, WholeBody
from api.middleware import SECURITY_HEADERS, AccessLog, Heads, SecurityHeaders
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

log = logging.getLogger("api")


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
