"""Every route of the service: a key is needed, and a scope is declared."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.testclient import TestClient

from api.app import create_app
from api.keys import OPEN_PATHS, Requirement
from api.limits import SECURITY_HEADERS
from api.settings import Settings
from tuner.store import Store, open_store
from tuner.store.keys import Keys
from tuner.store.records import Scope

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
VALUES = {"study_id": "st-0123456789ab", "format_name": "accelerate"}
"""Of parameters of paths."""
SCOPES = {
    ("GET", "/tune"): Scope.READ,
    ("POST", "/tune"): Scope.SUBMIT,
    ("GET", "/tune/{study_id}"): Scope.READ,
    ("DELETE", "/tune/{study_id}"): Scope.SUBMIT,
    ("GET", "/tune/{study_id}/probes"): Scope.READ,
    ("GET", "/tune/{study_id}/events"): Scope.READ,
    ("GET", "/tune/{study_id}/export/{format_name}"): Scope.READ,
    ("GET", "/openapi.json"): Scope.READ,
    ("GET", "/metrics"): Scope.READ,
    ("GET", "/audit"): Scope.ADMIN,
}
"""What each route needs. A new route belongs here."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("routes")
    with open_store(f"sqlite:///{folder}/studies.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def app(store: Store) -> FastAPI:
    return create_app(store, Settings(_env_file=None, require_keys=True, rate_burst=100_000))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def routes(app: FastAPI) -> list[RouteContext]:
    return list(iter_route_contexts(app.routes))


def path_of(template: str) -> str:
    for name, value in VALUES.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def requirements(dependant: Any) -> list[Scope]:
    """Scopes that are declared anywhere below."""
    own = [dependant.call.scope] if isinstance(dependant.call, Requirement) else []
    return own + [scope for below in dependant.dependencies for scope in requirements(below)]


def test_every_route_declares_its_scope(app: FastAPI) -> None:
    declared: dict[tuple[str, str], set[Scope]] = {}
    for route in routes(app):
        for method in route.methods or ():
            assert route.path is not None
            if method != "HEAD" and route.path not in OPEN_PATHS:
                declared[method, route.path] = set(requirements(route.dependant))
    assert declared == {key: {scope} for key, scope in SCOPES.items()}


def test_what_is_open_is_there(app: FastAPI) -> None:
    assert {route.path for route in routes(app)} >= OPEN_PATHS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "template", [*dict.fromkeys(path for _, path in SCOPES), "/", "/docs", "/redoc", "/nowhere"]
)
def test_every_route_needs_a_key(client: TestClient, template: str, method: str) -> None:
    path = path_of(template)
    wrong = {"Authorization": f"Bearer tuner_{'0' * 16}_{'A' * 43}"}
    for headers in ({}, wrong, {"Authorization": "Basic YTpi"}):
        response = client.request(method, path, headers=headers, content=b"{")
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
        for name, value in SECURITY_HEADERS.items():
            assert response.headers[name] == value


@pytest.mark.parametrize(("method", "template"), list(SCOPES))
def test_too_small_a_scope_is_refused(
    client: TestClient, store: Store, method: str, template: str
) -> None:
    needed = SCOPES[method, template]
    for scope in Scope:
        _, text = Keys(store.transactions).create("a", scope)
        headers = {"Authorization": f"Bearer {text}"}
        response = client.request(method, path_of(template), headers=headers, json={})
        allowed = list(Scope).index(scope) >= list(Scope).index(needed)
        assert (response.status_code not in (401, 403)) == allowed, response.text


def test_the_description_says_that_keys_are_needed(client: TestClient, store: Store) -> None:
    _, text = Keys(store.transactions).create("a", Scope.READ)
    description = client.get("/openapi.json", headers={"Authorization": f"Bearer {text}"}).json()
    schemes = description["components"]["securitySchemes"]
    assert {scheme["scheme"] for scheme in schemes.values()} == {"bearer"}
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert bool(operation.get("security")) == (path not in OPEN_PATHS), path
