"""Transactions on an open database: short, each its own, and their errors the product's."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tuner.store.engine import translated, writing


class Transactions:
    """Opens transactions, from any number of threads.

    Both kinds raise :class:`tuner.errors.StoreError` when the database fails, and
    :class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writer = writing(engine)
        self._hasty_writer = writing(engine, durable=False)
        self._alone = engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One that only reads."""
        with translated(self.engine.url), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Session]:
        """One that writes; it is rolled back when an exception leaves it.

        Args:
            durable: whether it must outlive a power cut, for which a commit waits for the disk.
                What means nothing without the processes that a power cut ends need not.
        """
        engine = self.writer if durable else self._hasty_writer
        with translated(self.engine.url), Session(engine) as session, session.begin():
            yield session

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        """One for each statement, which the server itself ends; not for SQLite, whose writers say
        when they begin."""
        with translated(self.engine.url), self._alone.connect() as connection:
            yield connection
