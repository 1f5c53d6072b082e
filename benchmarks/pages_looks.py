"""How much a screen holds, in the system's Chromium: part of ``make bench-pages``.

Screens of 900 pixels before the evidence of a study's page at 1440 pixels, and studies of the list
that are whole in the first screen.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages_study
from common import Goal
from service_server import serving

from tests.system.browser.chromium import chromium, find_chromium
from tuner.store import open_store

WIDTH, HEIGHT = 1440, 900
MOST_SCREENS, LEAST_ROWS = 3, 25
PROBES = 50
_TOP = "document.getElementById('evidence').getBoundingClientRect().top + scrollY"
_ROWS = (
    "[...document.querySelectorAll('tr.study')]"
    f".filter((row) => row.getBoundingClientRect().bottom <= {HEIGHT}).length"
)


def rows(probes: int = PROBES, studies: int = 60) -> list[dict[str, Any]]:
    """One row; without figures where there is no Chromium."""
    found: dict[str, Any] = {"view": "looks", "probes": probes, "screens": None, "rows": None}
    path = find_chromium()
    if path is None:
        return [found]
    made = pages_study.study(pages_study.question(), probes)
    with tempfile.TemporaryDirectory() as name:
        db = f"sqlite:///{name}/studies.db"
        with open_store(db) as store:
            study_id = pages_study.enter(store, made, probes)
            pages_study.enter_many(store, studies)
        with serving(db, Path(name)) as server, chromium(path) as browser:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"http://127.0.0.1:{server.port}/studies/{study_id}")
            found["screens"] = round(page.evaluate(_TOP) / HEIGHT, 2)
            page.goto(f"http://127.0.0.1:{server.port}/")
            found["rows"] = page.evaluate(_ROWS)
    return [found]


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    (row,) = rows
    screens = f"screens before the evidence of a study with {row['probes']} probes, 1440 by 900"
    return [
        Goal(name=screens, goal=f"<= {MOST_SCREENS}", value=row["screens"]),
        Goal(name="studies in the list's first 900 pixels", goal=f">= {LEAST_ROWS}",
             value=row["rows"]),
    ]  # fmt: skip
