"""A service over a database of its own, and somebody's browser in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from api.app import create_app
from api.settings import Settings
from tests.unit.api.browsers import Browser
from tests.unit.pages.html import Element, read_page
from tuner.store import Store, open_store

ShowPage = Callable[..., Element]


@pytest.fixture
def store(make_database: Callable[[Path], str], tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with open_store(make_database(tmp_path / "studies.db")) as opened:
        yield opened


@pytest.fixture
def settings() -> Settings:
    """A service on this machine, but for its haste."""
    return Settings(_env_file=None, poll_s=0.02)


@pytest.fixture
def app(store: Store, settings: Settings) -> FastAPI:
    """The application over the store."""
    return create_app(store, settings)


@pytest.fixture
def guarded(store: Store) -> FastAPI:
    """The same where keys are needed."""
    return create_app(store, Settings(_env_file=None, require_keys=True))


@pytest.fixture
def browser(app: FastAPI) -> Browser:
    """A person on this machine."""
    return Browser(app, address="127.0.0.1")


@pytest.fixture
def page(browser: Browser) -> ShowPage:
    """Reads a page, which must be of this status."""

    def show(path: str, status: int = 200) -> Element:
        answer = browser.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("text/html")
        return read_page(answer.text)

    return show
