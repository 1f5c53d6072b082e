"""Connections to PostgreSQL that were idle, and those that a restart has broken."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, text

from tuner.errors import StoreError
from tuner.store import Store, migrate, open_store
from tuner.store import engine as engine_module

pytestmark = pytest.mark.xdist_group("postgresql")

BREAK = text(
    "SELECT count(pg_terminate_backend(pid, 120000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def store(new_postgresql: Callable[[], str]) -> Iterator[Store]:
    """A store on a server that nobody else uses."""
    url = new_postgresql()
    migrate.upgrade(url)
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list to which each connection is added that is asked whether it works."""
    dialect, found = store.transactions.engine.dialect, []
    ping = dialect.do_ping

    def do_ping(connection: object) -> bool:
        found.append(connection)
        return ping(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(dialect, "do_ping", do_ping)
    return found


def broken(store: Store) -> int:
    """Breaks the store's connections, as a server does that ends; how many they were."""
    admin = create_engine(store.transactions.engine.url)
    with admin.connect() as connection:
        count: int = connection.scalar(BREAK)
    admin.dispose()
    return count


def test_one_is_asked_only_after_it_was_idle(
    store: Store, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 1000.0)
    for _ in range(3):
        assert store.count_open() == 0
    assert asked == []
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 0.0)
    for _ in range(3):
        assert store.count_open() == 0
    assert len(asked) == 3
    assert len(set(map(id, asked))) == 1, "it works, and stays"


def test_those_that_broke_while_idle_are_made_anew(
    store: Store, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 0.0)
    assert broken(store) == 2
    assert store.count_open() == 0
    assert len(asked) == 1
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]


def test_one_that_breaks_between_two_statements_is_an_error_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 1000.0)
    assert store.count_open() == 0
    assert broken(store) == 1
    with pytest.raises(StoreError, match="cannot be used"):
        store.count_open()
    assert store.count_open() == 0
