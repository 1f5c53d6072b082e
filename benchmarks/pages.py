"""How quick a study's page is, and what those cost who look on: ``make bench-pages`` (2 minutes).

A study of 500 probes (``pages_study.py``): its page as it is first seen after an event, and again;
its size; and one viewer against a hundred while it goes on.
"""

from common import report_parts

PARTS = {"views": "pages_views", "viewers": "pages_viewers"}
"""Modules by what their rows are called."""


def main() -> None:
    """Run all parts, and report."""
    report_parts("pages", PARTS)


if __name__ == "__main__":
    main()
