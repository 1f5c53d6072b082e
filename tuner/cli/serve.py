"""``tuner serve`` and ``tuner worker``: the processes that they become; where services are."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from tuner.cli.options import ServeAsked, WorkerAsked
from tuner.client.worker_process import Signals, probing_arguments
from tuner.core.launcher import LauncherName
from tuner.environment import PASSED_BY_NAME
from tuner.errors import UsageError
from tuner.text import read_duration


def serve(asked: ServeAsked) -> NoReturn:
    """Become the service; does not return.

    Options left out are read from ``TUNER_*`` variables, or a file ``.env``.
    """
    argv = [sys.executable, "-P", "-m", "api"]
    if asked.host is not None:
        argv += ["--host", asked.host]
    if asked.port is not None:
        argv += ["--port", str(asked.port)]
    if asked.require_keys is not None:
        argv.append("--require-keys" if asked.require_keys else "--no-require-keys")
    _become([*argv, "--json"] if asked.json else argv, asked.db)


def worker(asked: WorkerAsked) -> int:
    """Become a worker that serves studies, or submit one as a batch job, with its exit code."""
    if asked.once and asked.drain:
        raise UsageError("once", "with --drain", "only one of them can be asked for")
    if asked.json:
        os.environ["TUNER_LOG"] = "json"
    if asked.pass_env:
        named = [os.environ.get(PASSED_BY_NAME, ""), *asked.pass_env]
        os.environ[PASSED_BY_NAME] = ",".join(filter(None, named))
    argv = worker_argv(asked)
    if asked.slurm is None:
        _become(argv, asked.db)
    from platformdirs import user_cache_path
    from typer import echo

    from tuner.cli.slurm import submit
    from tuner.store.engine import default_url, is_sqlite, parse_url

    if asked.launcher not in (None, LauncherName.SLURM):
        raise UsageError("launcher", str(asked.launcher), "must be slurm with --slurm")
    if asked.db is not None:
        os.environ["TUNER_DB"] = asked.db
    if is_sqlite(parse_url(default_url())):
        echo(
            "note: the worker runs on another machine, and SQLite is for one: where other"
            " processes use this database meanwhile, take PostgreSQL",
            err=True,
        )
    folder = (asked.probes or user_cache_path("tuner")).absolute() / "slurm"
    inside = worker_argv(replace(asked, launcher=LauncherName.SLURM))
    with Signals() as signals:
        return submit(inside, asked.slurm, folder).follow(signals)


def worker_argv(asked: WorkerAsked) -> list[str]:
    """The command of a worker that serves studies; ``-P`` keeps the user's folder off its path."""
    if asked.ray and asked.launcher is not LauncherName.RAY:
        raise UsageError("ray", asked.ray, "is for --launcher ray")
    argv = [sys.executable, "-P", "-m", "workers", "--serve"]
    argv += [f"--pool={pool}" for pool in asked.pool or ()]
    argv += [f"--name={asked.name}"] if asked.name else []
    argv += ["--once"] if asked.once else []
    argv += ["--drain"] if asked.drain else []
    argv += [f"--probes={asked.probes.absolute()}"] if asked.probes else []
    given = asked.probe_deadline
    deadline_s = read_duration("probe_deadline", given) if given else None
    return [*argv, *probing_arguments(deadline_s, asked.launcher, asked.ray)]


def _become(argv: list[str], db: str | None) -> NoReturn:
    """The process stays the same: signals, and whoever watches or kills it, mean the new program.

    The database stands in its environment, which only this user can read: its address may hold a
    password.
    """
    if db is not None:
        os.environ["TUNER_DB"] = db
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606  (of our own making)


# Seconds in which a service on this machine takes a connection.
CONNECT_S = 0.2


def _address_file(db: str | None) -> Path:
    """The file in which the service of a database notes where it is reached."""
    from platformdirs import user_cache_path

    from tuner.store.engine import default_url, is_sqlite, parse_url

    url = parse_url(db or default_url())
    name = (
        str(Path(str(url.database)).absolute()) if is_sqlite(url) else f"{url.host}/{url.database}"
    )
    return user_cache_path("tuner") / "services" / f"{sha256(name.encode()).hexdigest()[:16]}.json"


@contextmanager
def noted_address(db: str | None, url: str) -> Iterator[None]:
    """Notes where a service is reached, for commands of this user, while it is."""
    path = _address_file(db)
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    with suppress(OSError):  # it serves without, too
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
                path.unlink()  # another service may have noted its own meanwhile


def page_of(study_id: str, server: str | None, db: str | None) -> str:
    """The address of a study's page; empty where no service runs on its database."""
    if server is not None:
        return f"{server.rstrip('/')}/studies/{study_id}"
    try:
        url = str(json.loads(_address_file(db).read_text(encoding="utf-8"))["url"])
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 0), CONNECT_S):
            return f"{url}/studies/{study_id}"
    except (OSError, ValueError, KeyError):
        return ""
