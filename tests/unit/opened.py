"""A storage of Optuna's, read and closed."""

from contextlib import contextmanager

import optuna
from optuna.storages import RDBStorage


@contextmanager
def opened_by_optuna(study, path):
    storage = RDBStorage(f"sqlite:///{path}")
    try:
        yield optuna.load_study(study_name=study, storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()
