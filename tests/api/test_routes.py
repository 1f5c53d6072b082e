"""Every route of the service, pages too: a key is needed, and a scope is declared."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.testclient import TestClient

from api.app import create_app
from api.keys import OPEN_PATHS, SAFE, Requirement
from api.limits import SECURITY_HEADERS
from api.pages.paths import is_open, is_page
from api.pages.people import PAGE_HEADERS
from api.sessions import formed
from api.settings import Settings
from tests.api.browsers import PAGE, Browser
from tuner.store import Store, open_store
from tuner.store.keys import Keys
from tuner.store.records import Scope
from tuner.store.sessions import Sessions

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
VALUES = {"study_id": "st-0123456789ab", "format_name": "accelerate", "probe_id": "1"}
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
"""What each route for tools needs. A new route belongs here."""
PAGES = {
    ("GET", "/"): Scope.READ,
    ("GET", "/new"): Scope.SUBMIT,
    ("POST", "/new"): Scope.SUBMIT,
    ("GET", "/compare"): Scope.READ,
    ("GET", "/studies/{study_id}"): Scope.READ,
    ("GET", "/studies/{study_id}/live"): Scope.READ,
    ("GET", "/studies/{study_id}/parts"): Scope.READ,
    ("GET", "/studies/{study_id}/probes/{probe_id}"): Scope.READ,
    ("GET", "/studies/{study_id}/settings"): Scope.READ,
    ("POST", "/studies/{study_id}/cancel"): Scope.SUBMIT,
}
"""And what each page does."""
OPEN = {
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/static/{version}/{name}"),
    ("GET", "/favicon.ico"),
}
"""What needs no key, beside OPEN_PATHS."""
WRONG = {"Authorization": f"Bearer tuner_{'0' * 16}_{'A' * 43}"}
STALE = {"Cookie": f"tuner_session={'A' * 43}"}


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


def declared(app: FastAPI) -> dict[tuple[str, str], Any]:
    """Every route but those of OPEN_PATHS, by method and path."""
    return {
        (method, route.path or ""): route.dependant
        for route in routes(app)
        for method in route.methods or ()
        if method != "HEAD" and route.path not in OPEN_PATHS
    }


def test_every_route_declares_its_scope(app: FastAPI) -> None:
    found = {key: set(requirements(one)) for key, one in declared(app).items()}
    expected = {key: {scope} for key, scope in (SCOPES | PAGES).items()}
    assert found == expected | {key: set() for key in OPEN}


def test_every_path_is_known_as_what_it_is(app: FastAPI) -> None:
    for method, template in declared(app):
        path = path_of(template)
        assert is_page(path) == ((method, template) in PAGES or path.startswith("/sign-"))
        assert is_open(path) == ((method, template) in OPEN)
    document = app.openapi()["paths"]
    assert set(document) == {path for _, path in SCOPES} | OPEN_PATHS, "which tells of no page"


def test_every_form_of_a_page_is_checked(app: FastAPI) -> None:
    """By the scope's requirement also where a route forgets; tests of sessions show that."""

    def reads(dependant: Any) -> bool:
        below = dependant.dependencies
        return dependant.call is formed or any(reads(one) for one in below)

    for (method, template), dependant in declared(app).items():
        if is_page(path_of(template)) and method not in SAFE and template != "/sign-out":
            assert reads(dependant) or requirements(dependant), template


def test_what_is_open_is_there(app: FastAPI) -> None:
    assert {route.path for route in routes(app)} >= OPEN_PATHS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "template", [*dict.fromkeys(path for _, path in SCOPES | PAGES), "/docs", "/redoc", "/nowhere"]
)
def test_every_route_needs_a_key(client: TestClient, template: str, method: str) -> None:
    path = path_of(template)
    for headers in ({}, WRONG, {"Authorization": "Basic YTpi"}, STALE):
        response = client.request(method, path, headers=headers, content=b"{")
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
        for name, value in SECURITY_HEADERS.items():
            assert response.headers[name] == value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("template", [*dict.fromkeys(path for _, path in PAGES), "/nowhere"])
def test_every_page_needs_a_key(client: TestClient, template: str, method: str) -> None:
    path = path_of(template)
    for headers in ({}, WRONG, STALE):
        response = client.request(method, path, headers={**PAGE, **headers}, content=b"a=1")
        if method in SAFE and headers is not WRONG:
            assert response.status_code == 303
            assert response.headers["location"].startswith("/sign-in")
        else:
            assert response.status_code == 401
            for name, value in PAGE_HEADERS.items():
                assert response.headers[name] == value


@pytest.mark.parametrize(("method", "template"), list(PAGES))
def test_a_session_opens_what_its_key_does(
    app: FastAPI, store: Store, method: str, template: str
) -> None:
    for scope in Scope:
        browser = Browser(app)
        key, _ = Keys(store.transactions).create("a", scope)
        browser.cookies.set("tuner_session", Sessions(store.transactions).begin(key.id))
        form = {"csrf_token": browser.token("/")} if method == "POST" else None
        response = browser.request(method, path_of(template), data=form)
        allowed = list(Scope).index(scope) >= list(Scope).index(PAGES[method, template])
        assert (response.status_code not in (303, 401, 403)) == allowed, response.text


@pytest.mark.parametrize(("method", "template"), [key for key in PAGES if key[0] == "POST"])
@pytest.mark.parametrize("required", [True, None])
def test_no_page_is_sent_a_form_of_another_site(
    store: Store, method: str, template: str, required: bool | None
) -> None:
    browser = Browser(create_app(store, Settings(_env_file=None, require_keys=required)))
    if required:
        key, _ = Keys(store.transactions).create("a", Scope.ADMIN)
        browser.cookies.set("tuner_session", Sessions(store.transactions).begin(key.id))
    path = path_of(template)
    good = {"csrf_token": browser.token("/new")}
    other_site = {"Origin": "https://evil.example"}
    assert browser.request(method, path, data=good, headers=other_site).status_code == 403
    for form in ({}, {"csrf_token": "0" * 64}):
        assert browser.request(method, path, data={"x": "1", **form}).status_code == 403
    assert browser.request(method, path, data=good).status_code not in (303, 401, 403)


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
