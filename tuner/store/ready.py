"""Whether a database can be worked with at this moment."""

from sqlalchemy import text

from tuner.store.migrate import HEAD
from tuner.store.tables import VERSION_TABLE
from tuner.store.transactions import Transactions

_VERSION = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608


def why_not_ready(transactions: Transactions) -> str:
    """Why the database is of no use to this version, in one line; empty when it is migrated.

    It costs one query, and looks for neither damage nor differences as ``tuner db check`` does.

    Raises:
        StoreError: the database cannot be read.
    """
    with transactions.read() as session:
        revision = session.scalar(_VERSION)
    if revision == HEAD:
        return ""
    return f"the database's schema is at {revision or 'none'}, this version's is {HEAD}"
