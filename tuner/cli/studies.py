"""``tuner studies list``. It is often called, so it imports no more than it needs."""

import re
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from tuner.cli.errors import print_json, tell
from tuner.core.study import OPEN, StudyState, parse_labels
from tuner.errors import TunerError, UsageError
from tuner.store import StudySummary, default_url, open_store
from tuner.store.access import Action, AuditNote, local_user
from tuner.store.engine import is_sqlite, parse_url
from tuner.store.workers import RegisteredWorker, Workers
from tuner.text import moment_text

# Studies that are listed.
MOST = 50
# Characters of a model's name that are shown.
LONGEST_NAME = 24
# Characters without which reasons are not shown.
NARROWEST_REASON = 20


def run(labels: Sequence[str], *, as_json: bool, db: str | None) -> int:
    wanted = parse_labels("label", labels)
    found: list[StudySummary] = []
    if is_there(db):  # where nothing was ever asked, that is no error
        with open_store(db, create=False) as store:
            found = store.studies(MOST, labels=wanted)
    if as_json:
        listed = [
            {
                "id": one.id,
                "model": one.model_name,
                "cluster": one.cluster_name,
                "state": str(one.state),
                "reason": one.reason,
                "labels": dict(one.labels),
                "probes": {str(outcome): count for outcome, count in one.probes.items()},
                "created_at": one.created_at,
                "asked_at": one.asked_at,
            }
            for one in found
        ]
        print_json({"studies": listed})
    elif not found and wanted:
        typer.echo(f"no study is labelled {', '.join(labels)}")
    elif not found:
        typer.echo("no studies yet: tuner suggest --help shows how to ask for one")
    else:
        _show(found)
    return 0


def is_there(db: str | None) -> bool:
    """Tells whether there is a database: one that is named must be, and is an error if not."""
    url = parse_url(db or default_url())
    return db is not None or not is_sqlite(url) or Path(str(url.database)).exists()


def _show(found: Sequence[StudySummary]) -> None:
    # Rich, which JSON needs none of
    from tuner.cli.console import Column, natural_width, stdout_console, table_of

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
    if server is None:
        with open_store(db, create=False) as store:
            cancelled = store.study(study_id).id
            if not store.move(cancelled, StudyState.CANCELLED, "cancelled by command"):
                raise TunerError(f"study {cancelled} is {store.study(cancelled).state} already")
    else:
        from tuner.client.service import Service

        if db is not None:
            raise UsageError("db", db, "is not applied with --server: the service has its own")
        if not re.fullmatch(r"st-[0-9a-f]{12}", study_id):
            raise UsageError("study", study_id, "must be a whole id, such as st-0123456789ab")
        with Service(server) as service:
            cancelled = str(service.cancel(study_id)["study_id"])
    found = {"study_id": cancelled, "state": str(StudyState.CANCELLED)}
    return tell(found, f"study {cancelled} is cancelled", as_json=as_json)


def delete_run(study_id: str, *, as_json: bool, db: str | None) -> int:
    note = AuditNote(actor=local_user(), action=Action.DELETE)
    with open_store(db, create=False) as store:
        study = store.study(study_id)
        if not store.delete(study.id, note):
            why = f"is {study.state}: cancel it first" if study.state in OPEN else "still ends"
            raise TunerError(f"study {study.id} {why}")
    return tell({"study_id": study.id}, f"study {study.id} is deleted", as_json=as_json)


def workers_run(*, here: bool, as_json: bool, db: str | None) -> int:
    """List the workers, or those of this machine or container; the exit code, 1 without any."""
    with open_store(db, create=False) as store:
        found, silent = (workers := Workers(store.transactions)).living(), workers.silent_here()
    host = socket.gethostname()
    shown = [one for one in found if not here or one.identity.host == host]
    if as_json:
        listed = [
            {
                "id": one.id,
                "name": one.name,
                "pools": list(one.pools),
                "machine": dict(one.machine),
                "versions": dict(one.versions),
                "started_at": one.started_at,
                "seen_at": one.seen_at,
            }
            for one in shown
        ]
        print_json({"workers": listed, "silent": [asdict(one.identity) for one in silent]})
    elif shown:
        _workers_show(shown)
    else:
        where = " on this machine" if here else ""
        typer.echo(f"no worker is running{where}: tuner worker starts one", err=True)
    for one in () if as_json else silent:
        pid, since = one.identity.pid, moment_text(one.seen_at)
        text = f"{one.name} (process {pid}) has given no sign since {since} UTC: it is stopped, or"
        typer.echo(f"{text} cannot reach the database; kill -CONT {pid} or kill -9 {pid}", err=True)
    return 0 if shown else 1


def _workers_show(workers: Sequence[RegisteredWorker]) -> None:
    from tuner.cli.console import print_rows
    from tuner.machine import Machine

    rows = []
    for worker in workers:
        machine = Machine.from_dict(worker.machine)
        kinds = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
        has = f"{len(machine.gpus)} {kinds}" if machine.gpus else f"{machine.cores} CPU cores"
        several = f"{len(machine.nodes)} x " if machine.others else ""
        rows.append(
            (worker.name, ", ".join(worker.pools) or "-", f"{several}{has}",
             worker.versions.get("torch", "-"), moment_text(worker.started_at))
        )  # fmt: skip
    print_rows(("worker", "pools", "has", "torch", "since (UTC)"), rows)
