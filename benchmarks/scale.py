"""How planning, the queue and a fleet of workers grow: ``make bench-scale`` (10 minutes).

Three parts: what one question costs to plan as the cluster and its space of settings grow; what
each look at the database costs as finished studies pile up, on both databases; and simulated
workers at one PostgreSQL server.
"""

from common import report_parts

PARTS = {"planning": "scale_planning", "database": "scale_rows", "fleet": "scale_fleet"}
"""Modules by what their tables are called; loaded when they run."""


def main() -> None:
    report_parts("scale", PARTS)


if __name__ == "__main__":
    main()
