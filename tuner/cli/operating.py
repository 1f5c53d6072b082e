"""The commands of those who run the service: it, its workers, its database.

As in :mod:`tuner.cli.commands`, what does the work is imported inside.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tuner.cli.options import Database, Json, taking
from tuner.launcher import LauncherName


def serve(
    host: Annotated[
        str | None, Option(metavar="ADDRESS", help="Address to bind to. By default 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, Option(metavar="N", help="Port, 0 for any that is free. By default 8765.")
    ] = None,
    require_keys: Annotated[
        bool | None,
        Option(
            "--require-keys/--no-require-keys",
            help="Whether every caller needs a key. By default unless ADDRESS is a loopback one.",
        ),
    ] = None,
    json: Json = False,
    db: Database = None,
) -> int:
    """Serve studies over HTTP, until SIGTERM or Ctrl-C.

    Workers do the work: see tuner worker. An address that other machines reach needs a key first:
    see tuner keys. Options left out are TUNER_* variables, or stand in a file .env. With --json
    one line says where it is reached, once it is.

    \b
    Example:
      tuner serve --db sqlite:///studies.db
    """
    from tuner.cli.serve import run

    run(host=host, port=port, require_keys=require_keys, as_json=json, db=db)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAsked:
    """Options of ``tuner worker``, as they were written."""

    pool: Annotated[
        list[str] | None,
        Option(metavar="LABEL", help="Serve the studies of this pool too; may be repeated."),
    ] = None
    name: Annotated[
        str, Option(metavar="NAME", help="What people see. By default host and process number.")
    ] = ""
    once: Annotated[bool, Option("--once", help="Serve one study, and end.")] = False
    drain: Annotated[
        bool, Option("--drain", help="End when no open study is left that it can serve.")
    ] = False
    launcher: Annotated[
        LauncherName | None,
        Option(
            metavar="NAME",
            help="What starts ranks: local, slurm in an allocation, or ray. By default slurm in an"
            " allocation of several nodes.",
        ),
    ] = None
    ray: Annotated[
        str,
        Option(
            metavar="HOST:PORT",
            help="The Ray cluster of --launcher ray. By default that of RAY_ADDRESS, or a new one"
            " on this machine.",
        ),
    ] = ""
    slurm: Annotated[
        str | None,
        Option(
            metavar="OPTIONS",
            help="Submit the worker with these options of sbatch, and show it until it ends.",
        ),
    ] = None
    probes: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="For the files of probes; all nodes must see it. By default in the user's cache.",
        ),
    ] = None
    probe_deadline: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="Time that one probe may take, such as 30m. By default 10m.",
        ),
    ] = None
    json: Annotated[
        bool, Option("--json", help="Log JSON lines, as without a terminal anyway.")
    ] = False
    db: Database = None


@taking(WorkerAsked)
def worker(asked: WorkerAsked) -> int:
    """Serve studies with what this machine has, or these nodes, until SIGTERM or Ctrl-C.

    Studies of no pool are served, and those of the pools that are named, the one that was asked
    first before others. Any machine makes predictions; probes are run where the cluster is, or one
    device that can play its. What cannot be done here is left to other workers. When it is
    stopped, its probes are given back and nothing is lost.

    \b
    Examples:
      tuner worker --pool h100
      tuner worker --slurm "-p gpu -N 4 --gpus-per-node=8 -t 8:00:00"
      tuner worker --launcher ray --ray 10.0.0.1:6379
    """
    from tuner.cli.worker import Place, run
    from tuner.units import read_duration

    given = asked.probe_deadline
    deadline_s = read_duration("probe_deadline", given) if given else None
    return run(
        pools=asked.pool or [],
        name=asked.name,
        once=asked.once,
        drain=asked.drain,
        place=Place(
            launcher=asked.launcher,
            ray=asked.ray,
            probes=asked.probes,
            probe_deadline_s=deadline_s,
        ),
        slurm=asked.slurm,
        as_json=asked.json,
        db=asked.db,
    )


def list_workers(
    here: Annotated[
        bool, Option("--here", help="Only those of this machine, or of this container.")
    ] = False,
    json: Json = False,
    db: Database = None,
) -> int:
    """List the workers that serve studies now: those that gave a sign within the last minute.

    Exit code 1 says that there is none.

    \b
    Example:
      tuner workers --here
    """
    from tuner.cli.workers import run

    return run(here=here, as_json=json, db=db)


def upgrade_database(json: Json = False, db: Database = None) -> int:
    """Bring a database to this version's schema; a SQLite file that is absent is made.

    SQLite is brought there by itself whenever it is used; other databases only by this command.

    \b
    Example:
      tuner db upgrade --db postgresql://user@host/tuner
    """
    from tuner.cli.database import upgrade

    return upgrade(as_json=json, db=db)


def check_database(json: Json = False, db: Database = None) -> int:
    """Check a database for damage and for differences from this version's schema.

    Exit code 1 says that something is wrong with it.

    \b
    Example:
      tuner db check
    """
    from tuner.cli.database import check

    return check(as_json=json, db=db)


def backup_database(
    path: Annotated[str, Argument(metavar="PATH", help="The copy: a file that is not there yet.")],
    json: Json = False,
    db: Database = None,
) -> int:
    """Copy a SQLite database, which may be in use, to a file that is not there yet.

    The copy is as the database was at one moment, and is checked. Nobody has to wait meanwhile,
    and nothing is overwritten. PostgreSQL is backed up by its own pg_dump.

    \b
    Example:
      tuner db backup tuner-2026-11-21.db
    """
    from tuner.cli.database import backup

    return backup(path, as_json=json, db=db)
