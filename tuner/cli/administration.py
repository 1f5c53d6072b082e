"""``tuner keys`` and ``tuner db``: who may use the service and what they did; the database.

What reads a database is imported inside, like what draws tables: help needs neither.
"""

from dataclasses import asdict
from datetime import timedelta

import typer

from tuner.cli.errors import print_json, tell
from tuner.cli.options import Database, Json
from tuner.errors import UsageError
from tuner.text import moment_text, read_duration, read_whole, size_text

# Entries of the audit that are shown at once.
MOST = 1000


def create_key(name: str, scope: str = "submit", json: Json = False, db: Database = None) -> int:
    """Make a key to the service, and print it: it is kept nowhere, and cannot be shown again.

    Alone on stdout, so that it can be put where it is needed without being seen.

    \b
    Example:
      tuner keys create scheduler --scope submit > scheduler.key
    """
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


def list_keys(json: Json = False, db: Database = None) -> int:
    """List the keys to the service: what each allows, and when it was used last.

    \b
    Example:
      tuner keys list
    """
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


def revoke_key(key: str, json: Json = False, db: Database = None) -> int:
    """Revoke a key for ever, from the next request on; the service need not be started again.

    \b
    Example:
      tuner keys revoke 5c1f
    """
    from tuner.store import open_store
    from tuner.store.access import Keys, local_user

    with open_store(db, create=False) as store:
        revoked = Keys(store.transactions).revoke(key, by=local_user())
    text = f"key {revoked.id} ({revoked.name}) is revoked: no request with it is answered"
    return tell(asdict(revoked), text, as_json=json)


def audit_keys(limit: str = "50", json: Json = False, db: Database = None) -> int:
    """Show who did what, the newest first: keys made, and used to submit or cancel.

    \b
    Example:
      tuner keys audit --limit 20
    """
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


def upgrade_database(json: Json = False, db: Database = None) -> int:
    """Bring a database to this version's schema; a SQLite file that is absent is made.

    SQLite is brought there whenever it is used; other databases only by this command.

    \b
    Example:
      tuner db upgrade --db postgresql://user@host/tuner
    """
    from tuner.store import default_url, migrate
    from tuner.store.engine import parse_url, shown_url

    url = db or default_url()
    applied = migrate.upgrade(url)
    shown = shown_url(parse_url(url))
    done = f"applied {', '.join(applied)}" if applied else "is up to date"
    return tell({"db": shown, "applied": applied}, f"{shown}: {done}", as_json=json)


def check_database(json: Json = False, db: Database = None) -> int:
    """Check a database for damage and for differences from this version's schema.

    Exit code 1 says that something is wrong with it.

    \b
    Example:
      tuner db check
    """
    from tuner.store import default_url, migrate
    from tuner.store.engine import parse_url, shown_url

    url = db or default_url()
    problems = migrate.check(url)
    shown = shown_url(parse_url(url))
    lines = "\n".join(f"{shown}: {line}" for line in problems or ["in order"])
    tell({"db": shown, "problems": problems}, lines, as_json=json)
    return 1 if problems else 0


def backup_database(path: str, json: Json = False, db: Database = None) -> int:
    """Copy a SQLite database, which may be in use, to a file that is not there yet.

    The copy is checked, and nothing is overwritten. PostgreSQL is backed up by its own pg_dump.

    \b
    Example:
      tuner db backup tuner-2026-11-21.db
    """
    from tuner.store import default_url, migrate
    from tuner.store.engine import parse_url, shown_url

    url = db or default_url()
    size_bytes = migrate.backup(url, path)
    shown = shown_url(parse_url(url))
    found = {"db": shown, "path": path, "size_bytes": size_bytes}
    return tell(found, f"{shown}: copied to {path}, {size_text(size_bytes)}", as_json=json)


def prune_database(older_than: str, json: Json = False, db: Database = None) -> int:
    """Delete old studies that are at their end, and old entries of the audit.

    \b
    Example:
      tuner db prune --older-than 90d
    """
    from tuner.store import open_store
    from tuner.store.access import local_user

    age = timedelta(seconds=read_duration("older_than", older_than))
    with open_store(db, create=False) as store:
        studies, entries = store.prune(age, by=local_user())
    text = f"deleted: {studies} of the studies, {entries} of the audit's entries"
    return tell({"studies": studies, "audit": entries}, text, as_json=json)
