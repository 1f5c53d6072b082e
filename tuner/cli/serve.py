"""``tuner serve``: the service, as the process that this command becomes."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from tuner.client.worker_process import deadline_arguments
from tuner.core.launcher import LauncherName
from tuner.errors import UsageError


def run(
    *,
    host: str | None,
    port: int | None,
    require_keys: bool | None,
    as_json: bool,
    db: str | None,
) -> NoReturn:
    """Become the service, which ends by signals; does not return.

    The process stays the same, so that signals, and whoever watches or kills it, mean the
    service itself. Options left out are read from ``TUNER_*`` variables, or a file ``.env``.
    """
    if db is not None:
        os.environ["TUNER_DB"] = db  # arguments are seen by everybody on this machine
    _become(serve_argv(host=host, port=port, require_keys=require_keys, as_json=as_json))


def serve_argv(
    *,
    host: str | None = None,
    port: int | None = None,
    require_keys: bool | None = None,
    as_json: bool = False,
) -> list[str]:
    """The service's command; ``-P`` keeps the folder that the user is in off the import path."""
    argv = [sys.executable, "-P", "-m", "api"]
    if host is not None:
        argv += ["--host", host]
    if port is not None:
        argv += ["--port", str(port)]
    if require_keys is not None:
        argv.append("--require-keys" if require_keys else "--no-require-keys")
    return [*argv, "--json"] if as_json else argv


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Place where a worker's probes run."""

    launcher: LauncherName | None = None
    """What starts ranks; where it is not said, the worker finds out."""
    ray: str = ""
    """Address of a Ray cluster."""
    probes: Path | None = None
    """Folder for the files of probes; in the user's cache unless given."""
    probe_deadline_s: float | None = None
    """Seconds that one probe may take; the worker's own limit unless given."""

    def __post_init__(self) -> None:
        if self.ray and self.launcher is not LauncherName.RAY:
            raise UsageError("ray", self.ray, "is for --launcher ray")

    @property
    def arguments(self) -> list[str]:
        """Arguments of the worker's command."""
        found = [f"--launcher={self.launcher}"] if self.launcher else []
        found += [f"--ray={self.ray}"] if self.ray else []
        found += [f"--probes={self.probes.absolute()}"] if self.probes else []
        return [*found, *deadline_arguments(self.probe_deadline_s)]


def worker_run(
    *,
    pools: Sequence[str],
    name: str,
    once: bool,
    drain: bool,
    place: WorkerPlace,
    slurm: str | None,
    as_json: bool,
    db: str | None,
) -> int:
    """Become a worker that serves studies, or submit one as a batch job: its exit code at its end.

    The database stands in the environment, which only this user can read: its address may hold a
    password.

    Raises:
        UsageError: it is to end after one study, and when none is left; or options of a job are
            not for it.
        ProbeError: the job cannot be submitted.
    """
    if once and drain:
        raise UsageError("once", "with --drain", "only one of them can be asked for")
    if db is not None:
        os.environ["TUNER_DB"] = db
    if as_json:
        os.environ["TUNER_LOG"] = "json"
    argv = service_argv(pools, name=name, once=once, drain=drain)
    if slurm is not None:
        return _submit(argv, place, slurm)
    return _become([*argv, *place.arguments])


def _become(argv: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606  (of our own making)


def _submit(argv: Sequence[str], place: WorkerPlace, options: str) -> int:
    from platformdirs import user_cache_path
    from typer import echo

    from tuner.cli.slurm import submit
    from tuner.client.worker_process import Signals
    from tuner.store.engine import default_url, is_sqlite, parse_url

    if place.launcher not in (None, LauncherName.SLURM):
        raise UsageError("launcher", str(place.launcher), "must be slurm with --slurm")
    if is_sqlite(parse_url(default_url())):
        echo(
            "note: the worker runs on another machine, and SQLite is for one: where other"
            " processes use this database meanwhile, take PostgreSQL",
            err=True,
        )
    inside = replace(place, launcher=LauncherName.SLURM)
    folder = (place.probes or user_cache_path("tuner")).absolute() / "slurm"
    with Signals() as signals:
        job = submit([*argv, *inside.arguments], options, folder)
        return job.follow(signals)


def service_argv(
    pools: Sequence[str] = (), *, name: str = "", once: bool = False, drain: bool = False
) -> list[str]:
    """The command of a worker that serves studies."""
    argv = [sys.executable, "-P", "-m", "workers", "--serve"]
    argv += [f"--pool={pool}" for pool in pools]
    argv += [f"--name={name}"] if name else []
    return [*argv, *(["--once"] if once else []), *(["--drain"] if drain else [])]
