"""``tuner studies list``. It is often called, so it imports no more than it needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tuner.cli.errors import print_json
from tuner.store import StudySummary, default_url, open_store
from tuner.store.engine import is_sqlite, parse_url
from tuner.units import moment_text

MOST = 50
"""Studies that are listed."""
LONGEST_NAME = 24
"""Characters of a model's name that are shown."""
NARROWEST_REASON = 20
"""Characters without which reasons are not shown."""


def run(*, as_json: bool, db: str | None) -> int:
    """List the studies asked last; the exit code.

    Raises:
        UsageError: the database was named and is not there, or is not ours.
        StoreError: it cannot be read.
    """
    found = _summaries(db)
    if as_json:
        print_json({"studies": [_as_dict(one) for one in found]})
    elif not found:
        typer.echo("no studies yet: tuner suggest --help shows how to ask for one")
    else:
        _show(found)
    return 0


def _summaries(db: str | None) -> list[StudySummary]:
    if db is None and not _exists(default_url()):
        return []  # nothing was ever asked, which is no error
    with open_store(db, create=False) as store:
        return store.studies(MOST)


def _exists(url: str) -> bool:
    parsed = parse_url(url)
    return not is_sqlite(parsed) or Path(str(parsed.database)).exists()


def _as_dict(summary: StudySummary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "model": summary.model_name,
        "cluster": summary.cluster_name,
        "state": str(summary.state),
        "reason": summary.reason,
        "probes": {str(outcome): count for outcome, count in summary.probes.items()},
        "created_at": summary.created_at,
        "asked_at": summary.asked_at,
    }


def _show(found: Sequence[StudySummary]) -> None:
    from tuner.cli.columns import Column, natural_width, table_of
    from tuner.cli.console import stdout_console

    console = stdout_console()
    columns = [
        Column("study", [one.id for one in found]),
        Column("model", [one.model_name[:LONGEST_NAME] for one in found]),
        Column("cluster", [one.cluster_name for one in found]),
        Column("state", [str(one.state) for one in found]),
        Column("probes", [str(sum(one.probes.values())) for one in found], is_number=True),
        Column("asked (UTC)", [moment_text(one.asked_at) for one in found]),
    ]
    room = console.width - natural_width(columns) - 2
    if room >= NARROWEST_REASON:
        columns.append(Column("reason", [one.reason[:room] for one in found]))
    console.print(table_of(columns, console.width))
    if len(found) == MOST:
        typer.echo(f"the newest {MOST} studies; older ones are kept too", err=True)
