"""``tuner studies list``. It is often called, so it imports no more than it needs."""

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tuner.cli.errors import print_json
from tuner.core.study import StudyState
from tuner.errors import TunerError, UsageError
from tuner.store import StudySummary, default_url, open_store
from tuner.store.engine import is_sqlite, parse_url
from tuner.store.workers import RegisteredWorker, Workers
from tuner.text import moment_text

if TYPE_CHECKING:
    from tuner.machine import Machine


# Studies that are listed.
MOST = 50
# Characters of a model's name that are shown.
LONGEST_NAME = 24
# Characters without which reasons are not shown.
NARROWEST_REASON = 20


def run(*, as_json: bool, db: str | None) -> int:
    """List the studies asked last; the exit code.

    Raises:
        UsageError: the database was named and is not there, or is not ours.
        StoreError: it cannot be read.
    """
    found = _summaries(db)
    if as_json:
        print_json({"studies": [_as_dict(one) for one in found]})
    elif not found:
        typer.echo("no studies yet: tuner suggest --help shows how to ask for one")
    else:
        _show(found)
    return 0


def _summaries(db: str | None) -> list[StudySummary]:
    if db is None and not _exists(default_url()):
        return []  # nothing was ever asked, which is no error
    with open_store(db, create=False) as store:
        return store.studies(MOST)


def _exists(url: str) -> bool:
    parsed = parse_url(url)
    return not is_sqlite(parsed) or Path(str(parsed.database)).exists()


def _as_dict(summary: StudySummary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "model": summary.model_name,
        "cluster": summary.cluster_name,
        "state": str(summary.state),
        "reason": summary.reason,
        "probes": {str(outcome): count for outcome, count in summary.probes.items()},
        "created_at": summary.created_at,
        "asked_at": summary.asked_at,
    }


def _show(found: Sequence[StudySummary]) -> None:
    from tuner.cli.columns import Column, natural_width, table_of
    from tuner.cli.console import stdout_console  # Rich, which JSON needs none of

    console = stdout_console()
    columns = [
        Column("study", [one.id for one in found]),
        Column("model", [one.model_name[:LONGEST_NAME] for one in found]),
        Column("cluster", [one.cluster_name for one in found]),
        Column("state", [str(one.state) for one in found]),
        Column("probes", [str(sum(one.probes.values())) for one in found], is_number=True),
        Column("asked (UTC)", [moment_text(one.asked_at) for one in found]),
    ]
    room = console.width - natural_width(columns) - 2
    if room >= NARROWEST_REASON:
        columns.append(Column("reason", [one.reason[:room] for one in found]))
    console.print(table_of(columns, console.width))
    if len(found) == MOST:
        typer.echo(f"the newest {MOST} studies; older ones are kept too", err=True)


def cancel_run(study_id: str, server: str | None, *, as_json: bool, db: str | None) -> int:
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
    from tuner.client.service import Service

    if db is not None:
        raise UsageError("db", db, "is not applied with --server: the service has its own")
    if not re.fullmatch(r"st-[0-9a-f]{12}", study_id):
        raise UsageError("study", study_id, "must be a whole id, such as st-0123456789ab")
    with Service(server) as service:
        return str(service.cancel(study_id)["study_id"])


FAILED = 1


def workers_run(*, here: bool, as_json: bool, db: str | None) -> int:
    """List them; the exit code, 1 when there are none.

    Args:
        here: only those of this machine, or of this container.
        as_json: print one JSON object.
        db: address of the database.

    Raises:
        UsageError: the database is not there, or is not ours.
        StoreError: it cannot be read.
    """
    with open_store(db, create=False) as store:
        found = Workers(store.transactions).living()
    host = socket.gethostname()
    shown = [one for one in found if not here or one.identity.host == host]
    if as_json:
        print_json({"workers": [_workers_as_dict(one) for one in shown]})
    elif shown:
        _workers_show(shown)
    else:
        where = " on this machine" if here else ""
        typer.echo(f"no worker is running{where}: tuner worker starts one", err=True)
    return 0 if shown else FAILED


def _workers_as_dict(worker: RegisteredWorker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "pools": list(worker.pools),
        "machine": dict(worker.machine),
        "versions": dict(worker.versions),
        "started_at": worker.started_at,
        "seen_at": worker.seen_at,
    }


def _workers_show(workers: Sequence[RegisteredWorker]) -> None:
    from tuner.cli.columns import Column, table_of
    from tuner.cli.console import stdout_console  # Rich, which JSON needs none of
    from tuner.machine import Machine

    console = stdout_console()
    columns = [
        Column("worker", [one.name for one in workers]),
        Column("pools", [", ".join(one.pools) or "-" for one in workers]),
        Column("has", [_what(Machine.from_dict(one.machine)) for one in workers]),
        Column("torch", [one.versions.get("torch", "-") for one in workers]),
        Column("since (UTC)", [moment_text(one.started_at) for one in workers]),
    ]
    console.print(table_of(columns, console.width))


def _what(machine: "Machine") -> str:
    """``8 NVIDIA H100 80GB HBM3``, or ``16 CPU cores``; of several nodes ``2 x 16 CPU cores``."""
    several = f"{len(machine.nodes)} x " if machine.others else ""
    if not machine.gpus:
        return f"{several}{machine.cores} CPU cores"
    kinds = dict.fromkeys(gpu.name for gpu in machine.gpus)
    return f"{several}{len(machine.gpus)} {', '.join(kinds)}"
