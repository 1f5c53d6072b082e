"""``tuner db``: bring a database to this version's schema, check it, and copy it."""

import typer

from tuner.cli.errors import print_json
from tuner.store import default_url, migrate
from tuner.store.engine import parse_url, shown_url
from tuner.text import size_text


def upgrade(*, as_json: bool, db: str | None) -> int:
    """Migrate; the exit code.

    Raises:
        UsageError: the address is wrong, or it cannot be written.
        StoreError: it cannot be reached, or is of a newer version.
    """
    url = db or default_url()
    applied = migrate.upgrade(url)
    shown = shown_url(parse_url(url))
    if as_json:
        print_json({"db": shown, "applied": applied})
    else:
        done = f"applied {', '.join(applied)}" if applied else "is up to date"
        typer.echo(f"{shown}: {done}")
    return 0


def check(*, as_json: bool, db: str | None) -> int:
    """Look for damage and differences; the exit code, 1 when there are some.

    Raises:
        UsageError: the address is wrong, or there is no such database.
        StoreError: it cannot be reached.
    """
    url = db or default_url()
    problems = migrate.check(url)
    shown = shown_url(parse_url(url))
    if as_json:
        print_json({"db": shown, "problems": problems})
    else:
        for line in problems or ["in order"]:
            typer.echo(f"{shown}: {line}")
    return 1 if problems else 0


def backup(path: str, *, as_json: bool, db: str | None) -> int:
    """Copy the database, which may be in use, to a new file; the exit code.

    Raises:
        UsageError: it is PostgreSQL's, or not there, or the file is there already.
        StoreError: no copy could be made.
    """
    from tuner.store.backup import backup as copy  # needs what the other commands do not

    url = db or default_url()
    size_bytes = copy(url, path)
    shown = shown_url(parse_url(url))
    if as_json:
        print_json({"db": shown, "path": path, "size_bytes": size_bytes})
    else:
        typer.echo(f"{shown}: copied to {path}, {size_text(size_bytes)}")
    return 0
