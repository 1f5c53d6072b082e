"""``tuner db``: bring a database to this version's schema, check it, and copy it."""

from tuner.cli.errors import tell
from tuner.store import default_url, migrate
from tuner.store.engine import parse_url, shown_url
from tuner.text import size_text


def upgrade(*, as_json: bool, db: str | None) -> int:
    """Migrate; the exit code."""
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
    from tuner.store.backup import backup as copy  # needs what the other commands do not

    url = db or default_url()
    size_bytes = copy(url, path)
    shown = shown_url(parse_url(url))
    found = {"db": shown, "path": path, "size_bytes": size_bytes}
    return tell(found, f"{shown}: copied to {path}, {size_text(size_bytes)}", as_json=as_json)
