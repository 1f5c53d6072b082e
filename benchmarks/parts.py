"""Benchmarks of several parts, run one after the other: ``python benchmarks/parts.py NAME``.

service (``make bench-service``, under 5 minutes): claims by eight workers on both databases, ``POST
/tune`` by 32 callers, 200 event streams and 60 long polls, and the statements that listeners cost.
The server is a process of its own, started by ``tuner serve``, on SQLite.

scale (``make bench-scale``, 10 minutes): what one question costs to plan as the cluster and its
space of settings grow; what each look at the database costs as finished studies pile up, on both
databases; and simulated workers at one PostgreSQL server.

pages (``make bench-pages``, 2 minutes): pages of studies of 50 and 500 probes (``pages_study.py``)
as they are first seen after an event, and again; their size; the list of a thousand studies; one
viewer against a hundred while a study goes on; and how much a screen holds.
"""

import sys
from importlib import import_module
from typing import Any

from common import Goal, report, show

PARTS = {
    "service": {
        "claims": "claims",
        "posts": "service_posts",
        "streams": "service_streams",
        "statements": "service_statements",
    },
    "scale": {"planning": "scale_planning", "database": "scale_rows", "fleet": "scale_fleet"},
    "pages": {"views": "pages_views", "viewers": "pages_viewers", "looks": "pages_looks"},
}
"""Modules by what their rows are called, each with ``rows()`` and ``goals(rows)``. The first one's
are the file's ``rows``. They are loaded when they run: processes that a part spawns load this."""


def main() -> None:
    name = sys.argv[1]
    found: dict[str, Any] = {}
    goals: list[Goal] = []
    for part, module in PARTS[name].items():
        loaded = import_module(module)
        found[part] = loaded.rows()
        show(part, found[part])
        goals += loaded.goals(found[part])
    report(name, goals, found.pop(next(iter(found))), found)


if __name__ == "__main__":
    main()
