"""The FastAPI application: questions are asked, and studies seen, over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from api import schemas
from api.access import AccessLog
from api.context import Context
from api.documented import problems
from api.head_requests import Heads
from api.keys import protect, require
from api.limits import SECURITY_HEADERS
from api.metrics import Metrics
from api.problems import add_problems
from api.queries import known_query, single_headers
from api.routes import audit, events, exports, health, metrics, openapi, studies
from api.routes.pages import page_routers
from api.settings import Settings
from tuner.store import Store
from tuner.store.audit import Audit
from tuner.store.figures import Figures, read_figures
from tuner.store.keys import Keys
from tuner.store.records import Scope

TITLE = "tuner"
API_VERSION = "1"
"""Raised when what was asked so far is answered otherwise."""
REFERENCE = "#/components/schemas/{model}"
SUMMARY = "The fastest training settings that fit in memory"


def create_app(store: Store, settings: Settings) -> FastAPI:
    """The application over one open store.

    ``app.state.stopping()`` ends all waiting; call it when the server begins to stop.

    Raises:
        UsageError: the settings contradict each other.
    """
    note, keys = Audit(store.transactions), Keys(store.transactions)
    context = Context.of(store, settings, note)
    app = FastAPI(
        title=TITLE,
        summary=SUMMARY,
        version=API_VERSION,
        dependencies=[Depends(known_query), Depends(single_headers)],
        openapi_url=None,
        generate_unique_id_function=_operation_id,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to http, where a proxy has the TLS, and with the key
        lifespan=_with_threads(settings.threads),
    )
    app.state.context, app.state.stopping = context, context.poller.stop
    measured = Metrics(_figures(store), version=version("tuner"))
    readable = [Depends(require(Scope.READ))]
    for router in (studies.router, events.router, exports.router, openapi.router):
        app.include_router(router)
    app.include_router(audit.audit_router(note), responses=problems(422))
    app.include_router(health.health_router(store))
    app.include_router(metrics.metrics_router(measured), dependencies=readable)
    for router in page_routers(keys):
        app.include_router(router)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    add_problems(app, SECURITY_HEADERS)
    app.add_middleware(Heads)
    protect(app, settings, keys, note)
    app.add_middleware(AccessLog, metrics=measured)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _figures(store: Store) -> Callable[[], Figures]:
    def read() -> Figures:
        with store.transactions.read() as session:
            return read_figures(session)

    return read


def _with_threads(count: int) -> Callable[[FastAPI], Any]:
    """Has at most so many requests worked at side by side."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = count
        yield

    return lifespan


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once; with the schemas that only problems and events have."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, summary=app.summary, version=app.version, routes=app.routes
        )
        kept = found["components"]["schemas"]
        for model in (schemas.Problem, schemas.Event):
            schema = model.model_json_schema(ref_template=REFERENCE)
            kept |= {**schema.pop("$defs", {}), model.__name__: schema}
        for unused in ("HTTPValidationError", "ValidationError"):
            kept.pop(unused, None)
        app.openapi_schema = found
    return app.openapi_schema
