"""Transactions on an open database: short, each its own, and their errors the product's."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
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

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One that only reads."""
        with translated(self.engine.url), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One that writes; it is rolled back when an exception leaves it."""
        with translated(self.engine.url), Session(self.writer) as session, session.begin():
            yield session
