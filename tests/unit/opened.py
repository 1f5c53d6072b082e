"""A storage of Optuna's, read and closed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages import RDBStorage


@contextmanager
def opened_by_optuna(study: str, path: Path) -> Iterator[optuna.Study]:
    storage = RDBStorage(f"sqlite:///{path}")
    try:
        yield optuna.load_study(study_name=study, storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()
