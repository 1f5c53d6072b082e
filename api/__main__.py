"""Serve the studies of a database to this machine.

    python -P -m api --db sqlite:///studies.db --port 8765

It reads only. It asks for no key, so it binds to loopback addresses only.
"""

import argparse
import ipaddress

import uvicorn

from api.app import create_app
from tuner.errors import TunerError
from tuner.store import open_store


def main() -> None:
    """Parse the command line and serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -P -m api", description=__doc__)
    parser.add_argument("--db", help="the database's URL (default: the user's own)")
    parser.add_argument("--host", default="127.0.0.1", type=_loopback)
    parser.add_argument("--port", default=8765, type=int)
    options = parser.parse_args()
    try:
        with open_store(options.db) as store:
            uvicorn.run(
                create_app(store), host=options.host, port=options.port, server_header=False
            )
    except TunerError as error:
        raise SystemExit(f"error: {error}") from error


def _loopback(host: str) -> str:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise argparse.ArgumentTypeError(f"{host!r} is not a loopback address: no key is asked for")
    return host


if __name__ == "__main__":
    main()
