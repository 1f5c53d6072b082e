"""How the service bears its callers: ``make bench-service`` (under 5 minutes).

Claims by eight workers on both databases, ``POST /tune`` by 32 callers, 200 event streams and 60
long polls, and the statements that listeners cost. The server is a process of its own, started by
``tuner serve``, on SQLite.
"""

from common import report_parts

PARTS = {
    "claims": "claims",
    "posts": "service_posts",
    "streams": "service_streams",
    "statements": "service_statements",
}
"""Modules by what their rows are called; loaded when they run, for each process of the first part
loads this one."""


def main() -> None:
    report_parts("service", PARTS)


if __name__ == "__main__":
    main()
