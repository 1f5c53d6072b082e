"""One browser and two services for all tests of this package; a new profile for each test."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from fastapi import FastAPI
from playwright.sync_api import expect

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.system.browser.chromium import WITHIN_MS, chromium, find_chromium
from tests.system.browser.prepared import prepare
from tests.system.browser.tabs import WIDE, opened
from tuner.store import Store, open_store

HERE = __file__.rpartition("/")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service that listens."""

    url: str
    database: str
    store: Store
    app: FastAPI


@contextmanager
def _serving(database, **more):
    settings = Settings(_env_file=None, poll_s=0.02, **more)
    with open_store(database) as store:
        app = create_app(store, settings)
        with serving(app) as url:
            yield Service(url=url, database=database, store=store, app=app)


@pytest.fixture(scope="package")
def browser():
    path = find_chromium()
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    expect.set_options(timeout=WITHIN_MS)
    with chromium(path) as found:
        yield found


@pytest.fixture(scope="package")
def service(make_database, tmp_path_factory):
    with _serving(make_database(tmp_path_factory.mktemp("pages") / "studies.db")) as found:
        yield found


@pytest.fixture(scope="package")
def prepared(service):
    return prepare(service.store)


@pytest.fixture(scope="package")
def guarded(make_database, tmp_path_factory):
    """A service that needs keys."""
    database = make_database(tmp_path_factory.mktemp("guarded") / "studies.db")
    with _serving(database, require_keys=True) as found:
        yield found


@pytest.fixture
def open_tab(browser, service):
    """Opens a tab: ``open_tab(path, width=360, theme="dark")``; at the end nothing went wrong."""
    tabs = []

    def open_one(path=None, *, base="", width=WIDE, theme="light", **more):
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=theme, **more)
        context.set_default_timeout(WITHIN_MS)
        tabs.append(opened(context, base or service.url))
        if path is not None:
            tabs[-1].go(path)
        return tabs[-1]

    yield open_one
    for tab in tabs:
        tab.page.context.close()
    troubles = [trouble for tab in tabs for trouble in tab.troubles]
    assert not troubles, "\n".join(troubles)
