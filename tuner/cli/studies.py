"""``tuner studies`` and ``tuner workers``: what was asked, and who is at it.

They are often called, and so is their help: what reads a database is imported inside.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tuner.cli.errors import print_json, tell
from tuner.cli.options import Several, Text
from tuner.errors import TunerError, UsageError
from tuner.text import moment_text

if TYPE_CHECKING:
    from tuner.store import StudySummary

# Studies that are listed.
MOST = 50
# Characters of a model's name that are shown.
LONGEST_NAME = 24
# Characters without which reasons are not shown.
NARROWEST_REASON = 20


def list_studies(label: Several = None, json: bool = False, db: Text = None) -> int:
    from tuner.core.study import parse_labels
    from tuner.store import open_store

    wanted = parse_labels("label", label or ())
    found: Sequence[StudySummary] = ()
    states: dict[str, str] = {}
    if is_there(db):  # where nothing was ever asked, that is no error
        with open_store(db, create=False) as store:
            found = store.studies(MOST, labels=wanted)
            ids = [one.id for one in found]
            statuses, kept = store.statuses(ids), store.summaries(ids)
        # The line that is kept of a study, where nothing happened since; a worker that leaves makes
        # no event, and another state.
        lines = ((statuses[one], line) for one, line in kept.items() if one in statuses)
        states = {one.id: one.shown_state for one in found}
        states |= {
            now.id: str(line.content.get("shown_state", now.state))
            for now, line in lines
            if line.newest_event >= now.newest_event and line.content.get("state") == now.state
        }
    if json:
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
        typer.echo(f"no study is labelled {', '.join(label or ())}")
    elif not found:
        typer.echo("no studies yet: tuner suggest --help shows how to ask for one")
    if json or not found:
        return 0
    # Rich, which JSON needs none of
    from tuner.cli.console import Column, natural_width, stdout_console, table_of

    console = stdout_console()
    columns = [
        Column("study", [one.id for one in found]),
        Column("model", [one.model_name[:LONGEST_NAME] for one in found]),
        Column("cluster", [one.cluster_name for one in found]),
        Column("state", [states[one.id] for one in found]),
        Column("probes", [str(sum(one.probes.values())) for one in found], is_number=True),
        Column("asked (UTC)", [moment_text(one.asked_at) for one in found]),
    ]
    room = console.width - natural_width(columns) - 2
    if room >= NARROWEST_REASON:
        columns.append(Column("reason", [one.reason[:room] for one in found]))
    console.print(table_of(columns, console.width))
    if len(found) == MOST:
        typer.echo(f"the newest {MOST} studies; older ones are kept too", err=True)
    return 0


def is_there(db: str | None) -> bool:
    """Tells whether there is a database: one that is named must be, and is an error if not."""
    from tuner.store import default_url
    from tuner.store.engine import is_sqlite, parse_url

    url = parse_url(db or default_url())
    return db is not None or not is_sqlite(url) or Path(str(url.database)).exists()


def cancel_study(study: str, server: Text = None, json: bool = False, db: Text = None) -> int:
    from tuner.core.study import StudyState
    from tuner.store import open_store

    if server is None:
        with open_store(db, create=False) as store:
            cancelled = store.study(study).id
            if not store.move(cancelled, StudyState.CANCELLED, "cancelled by command"):
                raise TunerError(f"study {cancelled} is {store.study(cancelled).state} already")
    else:
        from tuner.client.service import Service

        if db is not None:
            raise UsageError("db", db, "is not applied with --server: the service has its own")
        if not re.fullmatch(r"st-[0-9a-f]{12}", study):
            raise UsageError("study", study, "must be a whole id, such as st-0123456789ab")
        with Service(server) as service:
            cancelled = str(service.cancel(study)["study_id"])
    found = {"study_id": cancelled, "state": str(StudyState.CANCELLED)}
    return tell(found, f"study {cancelled} is cancelled", as_json=json)


def delete_study(study: str, json: bool = False, db: Text = None) -> int:
    from tuner.store import open_store, why_kept
    from tuner.store.access import Action, AuditNote, local_user

    note = AuditNote(actor=local_user(), action=Action.DELETE)
    with open_store(db, create=False) as store:
        found = store.study(study)
        if not store.delete(found.id, note):
            raise TunerError(why_kept(found.id, found.state))
    return tell({"study_id": found.id}, f"study {found.id} is deleted", as_json=json)


def list_workers(here: bool = False, json: bool = False, db: Text = None) -> int:
    from tuner.store import open_store
    from tuner.store.workers import Workers

    with open_store(db, create=False) as store:
        found, silent = (workers := Workers(store.transactions)).living(), workers.silent_here()
    host = socket.gethostname()
    shown = [one for one in found if not here or one.identity.host == host]
    if json:
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
        from tuner.cli.console import print_rows
        from tuner.machine import Machine

        rows = []
        for worker in shown:
            machine = Machine.from_dict(worker.machine)
            kinds = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
            has = f"{len(machine.gpus)} {kinds}" if machine.gpus else f"{machine.cores} CPU cores"
            several = f"{len(machine.nodes)} x " if machine.others else ""
            rows.append(
                (worker.name, ", ".join(worker.pools) or "-", f"{several}{has}",
                 worker.versions.get("torch", "-"), moment_text(worker.started_at))
            )  # fmt: skip
        print_rows(("worker", "pools", "has", "torch", "since (UTC)"), rows)
    else:
        where = " on this machine" if here else ""
        typer.echo(f"no worker is running{where}: tuner worker starts one", err=True)
    for one in () if json else silent:
        pid, since = one.identity.pid, moment_text(one.seen_at)
        text = f"{one.name} (process {pid}) has given no sign since {since} UTC: it is stopped, or"
        typer.echo(f"{text} cannot reach the database; kill -CONT {pid} or kill -9 {pid}", err=True)
    return 0 if shown else 1
