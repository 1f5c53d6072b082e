"""How quick a study's page is, and what those cost who look on: ``make bench-pages`` (2 minutes).

Studies of 50 and 500 probes (``pages_study.py``): their pages as they are first seen after an
event, and again; their size; the list of a thousand studies; one viewer against a hundred while a
study goes on; and how much a screen holds.
"""

from common import report_parts

PARTS = {"views": "pages_views", "viewers": "pages_viewers", "looks": "pages_looks"}
"""Modules by what their rows are called."""


def main() -> None:
    report_parts("pages", PARTS)


if __name__ == "__main__":
    main()
