"""When a database can be worked with."""

from pathlib import Path

import pytest
from sqlalchemy import text

from tuner.errors import TunerError
from tuner.store import Store, open_store
from tuner.store.engine import make_engine, parse_url
from tuner.store.ready import why_not_ready
from tuner.store.tables import VERSION_TABLE
from tuner.store.transactions import Transactions


def test_an_open_store_is_ready(store: Store) -> None:
    assert why_not_ready(store.transactions) == ""


@pytest.mark.parametrize("revision", ["0003", "9999"])
def test_another_versions_is_not(sqlite_url: str, revision: str) -> None:
    with open_store(sqlite_url) as store:
        with store.transactions.write() as session:
            session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))
        assert f"is at {revision}, this version's is" in why_not_ready(store.transactions)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite:///{}/empty.db", "no such table"),
        ("sqlite:///{}/none/gone.db", "there is no such file"),
        ("postgresql://user:secret@127.0.0.1:1/tuner", "cannot be used"),
    ],
)
def test_one_that_cannot_be_read_is_an_error(tmp_path: Path, url: str, why: str) -> None:
    (tmp_path / "empty.db").touch()
    engine = make_engine(parse_url(url.format(tmp_path)))
    with pytest.raises(TunerError, match=why) as raised:
        why_not_ready(Transactions(engine))
    assert "secret" not in str(raised.value)
    engine.dispose()
