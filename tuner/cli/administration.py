"""``tuner keys`` and ``tuner db``: who may use the service and what they did; the database."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import typer

from tuner.cli.errors import print_json, tell
from tuner.errors import UsageError
from tuner.store import default_url, migrate, open_store
from tuner.store.access import Audit, Keys, local_user
from tuner.store.engine import parse_url, shown_url
from tuner.store.tables import Scope
from tuner.text import moment_text, read_duration, read_whole, size_text

# Entries of the audit that are shown at once.
MOST = 1000


def create(name: str, scope: str, *, as_json: bool, db: str | None) -> int:
    """Make a key and print it, this once; the exit code."""
    try:
        allows = Scope(scope)
    except ValueError as error:
        raise UsageError("scope", scope, f"must be {', '.join(Scope)}") from error
    with open_store(db) as store:
        key, text = Keys(store.transactions).create(name, allows, by=local_user())
    if as_json:
        print_json({"key": text, **asdict(key)})
    else:
        typer.echo(text)
        told = f"key {key.id} ({key.scope}) is shown this once: requests send it as"
        typer.echo(f"{told} 'Authorization: Bearer tuner_...'", err=True)
    return 0


def show_keys(*, as_json: bool, db: str | None) -> int:
    with open_store(db, create=False) as store:
        found = Keys(store.transactions).list()
    if as_json:
        print_json({"keys": [asdict(key) for key in found]})
    elif not found:
        typer.echo("no keys yet: tuner keys create NAME makes one")
    else:
        from tuner.cli.console import print_rows

        rows = (
            (key.id, key.name, str(key.scope), moment_text(key.created_at),
             moment_text(key.last_used_at or ""), moment_text(key.revoked_at or ""))
            for key in found
        )  # fmt: skip
        titles = ("key", "name", "scope", "created (UTC)", "last used", "revoked")
        print_rows(titles, rows)
    return 0


def revoke(key: str, *, as_json: bool, db: str | None) -> int:
    with open_store(db, create=False) as store:
        revoked = Keys(store.transactions).revoke(key, by=local_user())
    text = f"key {revoked.id} ({revoked.name}) is revoked: no request with it is answered"
    return tell(asdict(revoked), text, as_json=as_json)


def show_audit(limit: str, *, as_json: bool, db: str | None) -> int:
    """Show the newest entries of the audit; the exit code."""
    most = read_whole("limit", limit)
    if most > MOST:
        raise UsageError("limit", limit, f"must be at most {MOST}")
    with open_store(db, create=False) as store:
        found = Audit(store.transactions).newest(most)
    if as_json:
        print_json({"audit": [entry.as_dict() for entry in found]})
    elif not found:
        typer.echo("nothing is noted yet")
    else:
        from tuner.cli.console import print_rows

        def more(data: Mapping[str, Any]) -> str:
            return ", ".join(f"{name} {value}" for name, value in data.items() if value != "")

        rows = (
            (moment_text(one.at), one.actor, one.action, one.study_id, more(one.data))
            for one in found
        )
        print_rows(("at (UTC)", "who", "what", "study", "more"), rows)
    return 0


def upgrade(*, as_json: bool, db: str | None) -> int:
    url = db or default_url()
    applied = migrate.upgrade(url)
    shown = shown_url(parse_url(url))
    done = f"applied {', '.join(applied)}" if applied else "is up to date"
    return tell({"db": shown, "applied": applied}, f"{shown}: {done}", as_json=as_json)


def check(*, as_json: bool, db: str | None) -> int:
    """Look for damage and differences; the exit code, 1 when there are some."""
    url = db or default_url()
    problems = migrate.check(url)
    shown = shown_url(parse_url(url))
    lines = "\n".join(f"{shown}: {line}" for line in problems or ["in order"])
    tell({"db": shown, "problems": problems}, lines, as_json=as_json)
    return 1 if problems else 0


def backup(path: str, *, as_json: bool, db: str | None) -> int:
    """Copy the database, which may be in use, to a new file; the exit code."""
    from tuner.store.migrate import backup as copy  # needs what the other commands do not

    url = db or default_url()
    size_bytes = copy(url, path)
    shown = shown_url(parse_url(url))
    found = {"db": shown, "path": path, "size_bytes": size_bytes}
    return tell(found, f"{shown}: copied to {path}, {size_text(size_bytes)}", as_json=as_json)


def prune(older_than: str, *, as_json: bool, db: str | None) -> int:
    """Delete old studies, and old entries of the audit; the exit code."""
    age = timedelta(seconds=read_duration("older_than", older_than))
    with open_store(db, create=False) as store:
        studies, entries = store.prune(age, by=local_user())
    text = f"deleted: {studies} of the studies, {entries} of the audit's entries"
    return tell({"studies": studies, "audit": entries}, text, as_json=as_json)
