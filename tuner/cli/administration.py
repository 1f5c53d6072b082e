"""``tuner keys`` and ``tuner db``: who may use the service and what they did; the database.

What reads a database is imported inside, like what draws tables: help needs neither.
"""

from dataclasses import asdict
from datetime import timedelta

import typer

from tuner.cli.errors import print_json, tell
from tuner.cli.options import Text
from tuner.errors import UsageError
from tuner.text import moment_text, read_duration, read_whole, size_text

# Entries of the audit that are shown at once.
MOST = 1000


def create_key(name: str, scope: str = "submit", json: bool = False, db: Text = None) -> int:
    from tuner.store import open_store
    from tuner.store.access import Keys, local_user
    from tuner.store.tables import Scope

    if scope not in list(Scope):
        raise UsageError("scope", scope, f"must be {', '.join(Scope)}")
    with open_store(db) as store:
        key, text = Keys(store.transactions).create(name, Scope(scope), by=local_user())
    if json:
        print_json({"key": text, **asdict(key)})
    else:
        typer.echo(text)
        told = f"key {key.id} ({key.scope}) is shown this once: requests send it as"
        typer.echo(f"{told} 'Authorization: Bearer tuner_...'", err=True)
    return 0


def list_keys(json: bool = False, db: Text = None) -> int:
    from tuner.cli.console import print_rows
    from tuner.store import open_store
    from tuner.store.access import Keys

    with open_store(db, create=False) as store:
        found = Keys(store.transactions).list()
    if json:
        print_json({"keys": [asdict(key) for key in found]})
    elif not found:
        typer.echo("no keys yet: tuner keys create NAME makes one")
    else:
        rows = (
            (key.id, key.name, str(key.scope), moment_text(key.created_at),
             moment_text(key.last_used_at or ""), moment_text(key.revoked_at or ""))
            for key in found
        )  # fmt: skip
        print_rows(("key", "name", "scope", "created (UTC)", "last used", "revoked"), rows)
    return 0


def revoke_key(key: str, json: bool = False, db: Text = None) -> int:
    from tuner.store import open_store
    from tuner.store.access import Keys, local_user

    with open_store(db, create=False) as store:
        revoked = Keys(store.transactions).revoke(key, by=local_user())
    text = f"key {revoked.id} ({revoked.name}) is revoked: no request with it is answered"
    return tell(asdict(revoked), text, as_json=json)


def audit_keys(limit: str = "50", json: bool = False, db: Text = None) -> int:
    from tuner.cli.console import print_rows
    from tuner.store import open_store
    from tuner.store.access import Audit

    most = read_whole("limit", limit)
    if most > MOST:
        raise UsageError("limit", limit, f"must be at most {MOST}")
    with open_store(db, create=False) as store:
        found = Audit(store.transactions).newest(most)
    if json:
        print_json({"audit": [entry.as_dict() for entry in found]})
    elif not found:
        typer.echo("nothing is noted yet")
    else:
        rows = (
            (moment_text(one.at), one.actor, one.action, one.study_id,
             ", ".join(f"{name} {value}" for name, value in one.data.items() if value != ""))
            for one in found
        )  # fmt: skip
        print_rows(("at (UTC)", "who", "what", "study", "more"), rows)
    return 0


def upgrade_database(json: bool = False, db: Text = None) -> int:
    from tuner.store import migrate

    url, shown = _address(db)
    applied = migrate.upgrade(url)
    done = f"applied {', '.join(applied)}" if applied else "is up to date"
    return tell({"db": shown, "applied": applied}, f"{shown}: {done}", as_json=json)


def check_database(json: bool = False, db: Text = None) -> int:
    from tuner.store import migrate

    url, shown = _address(db)
    problems = migrate.check(url)
    lines = "\n".join(f"{shown}: {line}" for line in problems or ["in order"])
    tell({"db": shown, "problems": problems}, lines, as_json=json)
    return 1 if problems else 0


def backup_database(path: str, json: bool = False, db: Text = None) -> int:
    from tuner.store import migrate

    url, shown = _address(db)
    size_bytes = migrate.backup(url, path)
    found = {"db": shown, "path": path, "size_bytes": size_bytes}
    return tell(found, f"{shown}: copied to {path}, {size_text(size_bytes)}", as_json=json)


def _address(db: str | None) -> tuple[str, str]:
    """A database's address, and that without its password."""
    from tuner.store import default_url
    from tuner.store.engine import parse_url, shown_url

    url = db or default_url()
    return url, shown_url(parse_url(url))


def prune_database(older_than: str, json: bool = False, db: Text = None) -> int:
    from tuner.store import open_store
    from tuner.store.access import local_user

    age = timedelta(seconds=read_duration("older_than", older_than))
    with open_store(db, create=False) as store:
        studies, entries = store.prune(age, by=local_user())
    text = f"deleted: {studies} of the studies, {entries} of the audit's entries"
    return tell({"studies": studies, "audit": entries}, text, as_json=json)
