"""``tuner studies cancel``: end a study, here or at a service."""

import re

import typer

from tuner.cli.errors import print_json
from tuner.errors import TunerError, UsageError
from tuner.store import open_store
from tuner.study import StudyState


def run(study_id: str, server: str | None, *, as_json: bool, db: str | None) -> int:
    """Cancel a study; the exit code.

    Raises:
        UsageError: there is no such study or database.
        TunerError: it has ended already.
        ServiceError: the service cannot be reached, or refused.
    """
    cancelled = _here(study_id, db) if server is None else _there(study_id, server, db)
    if as_json:
        print_json({"study_id": cancelled, "state": str(StudyState.CANCELLED)})
    else:
        typer.echo(f"study {cancelled} is cancelled")
    return 0


def _here(study_id: str, db: str | None) -> str:
    with open_store(db, create=False) as store:
        study = store.study(study_id)
        if not store.move(study.id, StudyState.CANCELLED, "cancelled by command"):
            raise TunerError(f"study {study.id} is {store.study(study.id).state} already")
    return study.id


def _there(study_id: str, server: str, db: str | None) -> str:
    from tuner.asking.service import Service

    if db is not None:
        raise UsageError("db", db, "is not applied with --server: the service has its own")
    if not re.fullmatch(r"st-[0-9a-f]{12}", study_id):
        raise UsageError("study", study_id, "must be a whole id, such as st-0123456789ab")
    with Service(server) as service:
        return str(service.cancel(study_id)["study_id"])
