"""A service over a database of its own, questions, and studies made by hand."""

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.conftest import make_dry_run
from tests.unit.api.studies import classes_of, question_of
from tuner.dryrun import dry_run_versions
from tuner.store import open_store

GIB = 2.0**30


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def url(make_database, tmp_path):
    return make_database(tmp_path / "studies.db")


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def settings():
    return Settings(_env_file=None, poll_s=0.02)


@pytest.fixture
def app(store, settings):
    return create_app(store, settings)


@pytest.fixture
def client(app):
    with TestClient(
        app, base_url="http://localhost", raise_server_exceptions=False, follow_redirects=False
    ) as opened:
        yield opened


@pytest.fixture
def keep_dry_runs(store):
    """Keeps dry runs of all classes of a request's question, as if a worker had made them."""

    def keep(body):
        question = question_of(body)
        for settings in classes_of(question):
            versions = dry_run_versions()
            store.keep_dry_run(make_dry_run(question, settings, GIB, GIB, versions=versions))

    return keep
