"""What there is, is told; and what is told, there is."""

import re

from starlette.routing import Match

from api.app import create_app
from api.settings import Settings
from tests.system.docs.command_line import known_variables
from tests.system.docs.pages import PAGES, ROOT, name_of, text
from tuner.core.configuration import KNOBS
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import StudyState
from tuner.launchfiles import FORMATS
from tuner.store import open_store

REST, CONCEPTS, TROUBLE = "docs/api.md", "docs/concepts.md", "docs/troubleshooting.md"
PAGES_OF_PEOPLE = {"/", "/new", "/studies/{id}", "/compare", "/sign-in", "/sign-out", "/static"}
"""Paths that are no part of the interface, and of which the OpenAPI document does not tell."""


def rows(page, title=""):
    """The first cells of a page's tables, or of those under one heading; without code's marks."""
    found = text(page)
    if title:
        (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", found, flags=re.M | re.S)
    return re.findall(r"^\| `([^`|]+)`[ ,|]", found, flags=re.M)


def test_every_outcome_is_explained_and_no_other():
    assert rows(TROUBLE, "Outcomes") == [str(outcome) for outcome in Outcome]


def test_states_fidelities_and_provenances_are_explained_in_their_order():
    assert rows(CONCEPTS, "The study") == [str(state) for state in StudyState]
    assert rows(CONCEPTS, "Four fidelities") == [str(one) for one in Fidelity]
    told = rows(CONCEPTS, "A number, and what stands behind it")
    assert told == [str(one) for one in Provenance]


def test_routes_are_those_of_the_service(make_database, tmp_path):
    with open_store(make_database(tmp_path / "s.db")) as store:
        app = create_app(store, Settings(_env_file=None))
        document = app.openapi()
        found = [path for path in PAGES_OF_PEOPLE if _leads(app, path)]
    there = {
        (method.upper(), _nameless(path)) for path, of in document["paths"].items() for method in of
    }
    (table,) = re.findall(r"^## Routes\n(.*?)^## ", text(REST), flags=re.M | re.S)
    told = re.findall(r"`(GET|POST|DELETE|PUT|PATCH) (/[^`?]*)`", table)
    assert {(method, _nameless(path)) for method, path in told} == there
    assert set(re.findall(r"`(/[^`]*)`", table)) == PAGES_OF_PEOPLE
    assert set(found) == PAGES_OF_PEOPLE
    assert not _leads(app, "/nowhere")


def _leads(app, path):
    """Whether anything answers there; what is below ``/static`` in its place."""
    asked = {"type": "http", "method": "GET", "headers": [], "root_path": ""}
    scope = {**asked, "path": "/static/x/y" if path == "/static" else path}
    return any(route.matches(dict(scope))[0] is not Match.NONE for route in app.routes)


def _nameless(path):
    """A path whose parameters have no names."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_variables_that_are_named_are_read():
    examples = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "examples").rglob("*")
        if path.is_file()
    )
    read = known_variables() | set(re.findall(r"\bTUNER_[A-Z_]*[A-Z]\b", examples))
    for page in PAGES:
        named = set(re.findall(r"\bTUNER_[A-Z_]*[A-Z]\b", text(name_of(page))))
        assert named <= read, page


def test_exports_shows_every_format_and_knob_with_golden_files():
    page = text("docs/exports.md")
    rows = re.findall(r"^\| `([a-z-]+)` \| \[`([^`]+)`\]\(([^)]+)\) \|", page, flags=re.M)
    assert [(name, file) for name, file, _ in rows] == [
        (name, known.file_name) for name, known in FORMATS.items()
    ]
    golden = {name: ROOT / "docs" / link for name, _, link in rows}
    assert all(path.name == FORMATS[name].file_name for name, path in golden.items())
    (example,) = re.findall(r"```yaml\n(.*?)\n```", page, flags=re.S)
    assert example in golden["accelerate"].read_text(encoding="utf-8")
    knobs = re.findall(r"^\| `([a-z_]+)` \|", page, flags=re.M)
    assert [name for name in knobs if name in KNOBS] == list(KNOBS)
