"""Connections to PostgreSQL that were idle, and those that a restart has broken."""

import pytest
from sqlalchemy import create_engine, text

from tuner.core.study import Limits, StudyState
from tuner.errors import StoreError
from tuner.store import engine as engine_module
from tuner.store import migrate, open_store
from tuner.store.tables import StudyRow

pytestmark = pytest.mark.xdist_group("postgresql")

BREAK = text(
    "SELECT count(pg_terminate_backend(pid, 120000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def store(new_postgresql):
    """A store on a server that nobody else uses."""
    url = new_postgresql()
    migrate.upgrade(url)
    with open_store(url) as opened:
        yield opened


def broken(store):
    """Breaks the store's connections, as a server does that ends; how many they were."""
    admin = create_engine(store.transactions.engine.url)
    with admin.connect() as connection:
        count: int = connection.scalar(BREAK)
    admin.dispose()
    return count


def test_those_that_broke_while_idle_are_made_anew(store, monkeypatch):
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 0.0)
    assert broken(store) == 2
    assert store.count_open() == 0
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]


def test_one_that_breaks_between_two_statements_is_an_error_once(store, monkeypatch):
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 1000.0)
    assert store.count_open() == 0
    assert broken(store) == 1
    with pytest.raises(StoreError, match="cannot be used"):
        store.count_open()
    assert store.count_open() == 0


def test_who_stops_inside_a_transaction_does_not_hold_up_others(store, question):
    study = store.ask(question, Limits())
    with (
        open_store(store.url) as sleeper,
        pytest.raises(StoreError, match="idle-in-transaction timeout"),
        sleeper.transactions.write() as session,
    ):
        session.get(StudyRow, study.id, with_for_update=True)
        allowed = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
        assert allowed == f"{engine_module.IDLE_TIMEOUT_S}s"
        session.execute(text("SET idle_in_transaction_session_timeout = '1s'"))  # from here on
        assert store.move(study.id, StudyState.CANCELLED)  # waits until the lock is taken away
    assert store.study(study.id).state is StudyState.CANCELLED
