"""Every route of the service, pages too: a key is needed, and a scope is declared."""

import pytest
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

from api.app import SECURITY_HEADERS, create_app
from api.pages.people import PAGE_HEADERS
from api.security import OPEN_PATHS, SAFE, Requirement, is_open, is_page
from api.sessions import formed
from api.settings import Settings
from tests.unit.api.browsers import PAGE, Browser
from tuner.store import open_store
from tuner.store.access import Keys, Sessions
from tuner.store.tables import Scope

METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS")
VALUES = {"study_id": "st-0123456789ab", "format_name": "accelerate", "number": "1"}
# The scope of each route for tools, and of pages. A new route belongs here.
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
    **{("POST", path): Scope.READ for path in ("/size", "/predict", "/check")},
    **{("GET", path): Scope.READ for path in ("/models", "/gpus", "/formats", "/workers")},
}
PAGES = {
    ("GET", "/"): Scope.READ,
    ("GET", "/new"): Scope.SUBMIT,
    ("POST", "/new"): Scope.SUBMIT,
    ("GET", "/compare"): Scope.READ,
    ("GET", "/studies/{study_id}"): Scope.READ,
    ("GET", "/studies/{study_id}/live"): Scope.READ,
    ("GET", "/studies/{study_id}/probes/{number}"): Scope.READ,
    ("GET", "/studies/{study_id}/settings"): Scope.READ,
    ("POST", "/studies/{study_id}/cancel"): Scope.SUBMIT,
    ("POST", "/studies/{study_id}/labels"): Scope.SUBMIT,
    ("POST", "/studies/{study_id}/delete"): Scope.ADMIN,
}
OPEN = {
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/static/{version}/{name}"),
    ("GET", "/favicon.ico"),
}
NOWHERE = {"/docs", "/redoc", "/nowhere"}
WRONG = {"Authorization": f"Bearer tuner_{'0' * 16}_{'A' * 43}"}
STALE = {"Cookie": f"tuner_session={'A' * 43}"}
REFUSED = (303, 401, 403)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    with open_store(f"sqlite:///{folder}/studies.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def app(store):
    return create_app(store, Settings(_env_file=None, require_keys=True, rate_burst=100_000))


@pytest.fixture(scope="module")
def client(app):
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def path_of(template):
    for name, value in VALUES.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def below(dependant):
    yield dependant.call
    for each in dependant.dependencies:
        yield from below(each)


def declared(app):
    return {
        (method, route.path or ""): route.dependant
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
        if method != "HEAD" and route.path not in OPEN_PATHS
    }


def test_every_route_declares_its_scope_and_every_form_is_checked(app):
    found, unchecked = {}, []
    for (method, template), dependant in declared(app).items():
        calls = list(below(dependant))
        scopes = {call.scope for call in calls if isinstance(call, Requirement)}
        found[method, template] = scopes
        # By the scope's requirement also where a route forgets; tests of sessions show that.
        if is_page(path_of(template)) and method not in SAFE and not scopes and formed not in calls:
            unchecked.append(template)
    expected = {key: {scope} for key, scope in (SCOPES | PAGES).items()}
    assert found == expected | {key: set() for key in OPEN}
    assert unchecked == ["/sign-out"]  # it reads the form where there is a session to end


def test_every_path_is_known_as_what_it_is(app):
    for method, template in declared(app):
        path = path_of(template)
        assert is_page(path) == ((method, template) in PAGES or path.startswith("/sign-"))
        assert is_open(path) == ((method, template) in OPEN)
    document = app.openapi()["paths"]
    assert set(document) == {path for _, path in SCOPES} | OPEN_PATHS, "which tells of no page"
    assert {route.path for route in iter_route_contexts(app.routes)} >= OPEN_PATHS


def test_every_route_needs_a_key(client):
    for template in {path for _, path in SCOPES | PAGES} | NOWHERE:
        for method in METHODS:
            for headers in ({}, WRONG, {"Authorization": "Basic YTpi"}, STALE):
                answer = client.request(method, path_of(template), headers=headers, content=b"{")
                where = (method, template, headers)
                assert answer.status_code == 401, where
                assert answer.headers["www-authenticate"].startswith("Bearer"), where
                for name, value in SECURITY_HEADERS.items():
                    assert answer.headers[name] == value, where


def test_every_page_needs_a_key(client):
    for template in {path for _, path in PAGES} | {"/nowhere"}:
        for method in METHODS:
            for headers in ({}, WRONG, STALE):
                given = {**PAGE, **headers}
                answer = client.request(method, path_of(template), headers=given, content=b"a=1")
                where = (method, template, headers)
                if method in SAFE and headers is not WRONG:
                    assert answer.status_code == 303, where
                    assert answer.headers["location"].startswith("/sign-in"), where
                else:
                    assert answer.status_code == 401, where
                    for name, value in PAGE_HEADERS.items():
                        assert answer.headers[name] == value, where


def test_a_session_opens_what_its_key_does(app, store):
    for scope in Scope:
        browser = signed_in(app, store, scope)
        for (method, template), needed in PAGES.items():
            form = {"csrf_token": browser.token("/")} if method == "POST" else None
            answer = browser.request(method, path_of(template), data=form)
            where = (scope, method, template)
            allows = list(Scope).index(scope) >= list(Scope).index(needed)
            assert (answer.status_code not in REFUSED) == allows, where


def signed_in(app, store, scope):
    browser = Browser(app)
    key, _ = Keys(store.transactions).create("a", scope)
    browser.cookies.set("tuner_session", Sessions(store.transactions).begin(key.id))
    return browser
