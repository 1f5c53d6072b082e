"""A service over a database of its own, and somebody's browser in this process."""

import pytest

from api.app import create_app
from api.settings import Settings
from tests.unit.api.browsers import Browser
from tests.unit.api.conftest import app, settings, store, url
from tests.unit.pages.html import read_page

__all__ = ["app", "settings", "store", "url"]


@pytest.fixture
def guarded(store):
    """The service where keys are needed."""
    return create_app(store, Settings(_env_file=None, require_keys=True))


@pytest.fixture
def browser(app):
    return Browser(app, address="127.0.0.1")


@pytest.fixture
def page(browser):

    def show(path, status=200):
        answer = browser.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        return read_page(answer.text)

    return show
