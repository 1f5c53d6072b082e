"""``tuner workers``: the processes that serve studies now."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from tuner.cli.errors import print_json
from tuner.store import open_store
from tuner.store.workers import RegisteredWorker, Workers
from tuner.units import moment_text

if TYPE_CHECKING:
    from tuner.machine import Machine

FAILED = 1


def run(*, here: bool, as_json: bool, db: str | None) -> int:
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
        print_json({"workers": [_as_dict(one) for one in shown]})
    elif shown:
        _show(shown)
    else:
        where = " on this machine" if here else ""
        typer.echo(f"no worker is running{where}: tuner worker starts one", err=True)
    return 0 if shown else FAILED


def _as_dict(worker: RegisteredWorker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "pools": list(worker.pools),
        "machine": dict(worker.machine),
        "versions": dict(worker.versions),
        "started_at": worker.started_at,
        "seen_at": worker.seen_at,
    }


def _show(workers: Sequence[RegisteredWorker]) -> None:
    from tuner.cli.columns import Column, table_of
    from tuner.cli.console import stdout_console
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
