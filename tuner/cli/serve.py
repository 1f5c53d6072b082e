"""``tuner serve``: the service, as the process that this command becomes."""

import os
import sys
from typing import NoReturn


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
    sys.stdout.flush()
    argv = serve_argv(host=host, port=port, require_keys=require_keys, as_json=as_json)
    os.execv(argv[0], argv)  # noqa: S606  (of our own making)


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
