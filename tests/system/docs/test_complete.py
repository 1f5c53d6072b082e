"""What there is, is told; and what is told, there is."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import yaml
from fastapi import FastAPI
from starlette.routing import Match

from api.app import create_app
from api.settings import Settings
from tests.system.docs.command_line import known_variables
from tests.system.docs.pages import PAGES, ROOT, blocks, name_of, text
from tuner.core.configuration import KNOBS
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import StudyState
from tuner.errors import __doc__ as tree_of_errors
from tuner.launchfiles import FORMATS
from tuner.model.fields import ARCHITECTURES
from tuner.store import open_store

REST, CONCEPTS, TROUBLE = "docs/api.md", "docs/concepts.md", "docs/troubleshooting.md"
PAGES_OF_PEOPLE = {"/", "/new", "/studies/{id}", "/compare", "/sign-in", "/sign-out", "/static"}
"""Paths that are no part of the interface, and of which the OpenAPI document does not tell."""


def rows(page: str, title: str = "") -> list[str]:
    """The first cells of a page's tables, or of those under one heading; without code's marks."""
    found = text(page)
    if title:
        (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", found, flags=re.M | re.S)
    return re.findall(r"^\| `([^`|]+)`[ ,|]", found, flags=re.M)


def test_every_knob_is_explained() -> None:
    explained = set(rows("docs/knobs.md"))
    assert set(KNOBS) - {"pp_size"} <= explained  # that is of nanotron only


def test_every_outcome_is_explained_and_no_other() -> None:
    assert rows(TROUBLE, "Outcomes") == [str(outcome) for outcome in Outcome]


def test_states_fidelities_and_provenances_are_explained_in_their_order() -> None:
    assert rows(CONCEPTS, "The study") == [str(state) for state in StudyState]
    assert rows(CONCEPTS, "Three fidelities") == [str(one) for one in Fidelity]
    told = rows(CONCEPTS, "A number, and what stands behind it")
    assert told == [str(one) for one in Provenance]


def test_every_error_has_an_exit_code_that_is_told() -> None:
    codes = set(re.findall(r"\(exit (\d)\)", tree_of_errors or ""))
    assert codes <= set(re.findall(r"^\| (\d) \|", text(TROUBLE), flags=re.M))


def test_every_format_of_an_export_is_named() -> None:
    (listed,) = re.findall(
        r"writes an answer in every format: (.*?`)\.", text("docs/quickstart.md"), re.S
    )
    assert re.findall(r"`([^`]+)`", listed) == list(FORMATS)


def test_every_type_of_model_is_named() -> None:
    (listed,) = re.findall(r"`model_type` is one of\n?(.*?)\.", text(TROUBLE), re.S)
    assert sorted(re.findall(r"`([^`]+)`", listed)) == sorted(ARCHITECTURES)


def test_routes_are_those_of_the_service(
    make_database: Callable[[Path], str], tmp_path: Path
) -> None:
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


def _leads(app: FastAPI, path: str) -> bool:
    """Whether anything answers there; what is below ``/static`` in its place."""
    asked = {"type": "http", "method": "GET", "headers": [], "root_path": ""}
    scope = {**asked, "path": "/static/x/y" if path == "/static" else path}
    return any(route.matches(dict(scope))[0] is not Match.NONE for route in app.routes)


def _nameless(path: str) -> str:
    """A path whose parameters have no names."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_variables_that_are_named_are_read() -> None:
    examples = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "examples").rglob("*")
        if path.is_file()
    )
    read = known_variables() | set(re.findall(r"\bTUNER_[A-Z_]*[A-Z]\b", examples))
    for page in PAGES:
        named = set(re.findall(r"\bTUNER_[A-Z_]*[A-Z]\b", text(name_of(page))))
        assert named <= read, page


def test_variables_of_commands_are_in_the_reference() -> None:
    told = {*rows("docs/cli.md"), *rows("docs/deploy.md", "Settings")}
    assert {"TUNER_DB", "TUNER_KEY", "TUNER_DEBUG"} <= told


def test_every_package_is_in_the_architecture() -> None:
    page = text("docs/architecture.md")
    for package in ("tuner", "workers", "api"):
        for init in sorted((ROOT / package).rglob("__init__.py")):
            folder = init.parent.relative_to(ROOT)
            if len(folder.parts) <= 2:
                assert f"`{folder}/`" in page, folder


def test_every_decision_is_listed() -> None:
    page = text("docs/decisions/README.md")
    for record in (ROOT / "docs" / "decisions").glob("0*.md"):
        assert f"({record.name})" in page


def test_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)", text(name_of(page))))
        assert named <= targets, page
    needed = {"suggest", "test", "test-all", "test-long", "check", "docs", "bench"}
    assert needed <= targets


def test_the_readme_counts_the_models() -> None:
    models = len(list((ROOT / "tuner" / "catalog" / "models").glob("*.json")))
    assert f"({models} of them," in text("README.md")
    assert len(text("README.md").splitlines()) <= 150


# What a template of a script's configuration has in the place of a value.
PLACEHOLDER = re.compile(r"\{[a-z_]+(=[^{}:]*)?\}")
READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "yaml": lambda shown: list(yaml.safe_load_all(shown)),
    "toml": tomllib.loads,
    "python": lambda shown: compile(shown, "shown", "exec"),
}


def test_blocks_are_of_their_language() -> None:
    for page in PAGES:
        for block in blocks(name_of(page)):
            if read := READERS.get(block.language):
                is_yaml = block.language == "yaml"
                read(re.sub(PLACEHOLDER, "1", block.text) if is_yaml else block.text)


EXPORTS = text("docs/exports.md")
EXAMPLES = re.findall(
    r"^\*\*([a-z-]+)\*\*[^\n]*\n\n((?:```\w+\n.*?\n```\n\n)+)",
    EXPORTS.partition("## Examples")[2],
    flags=re.M | re.S,
)


def test_exports_shows_every_format_and_knob_with_golden_files() -> None:
    found = re.findall(r"^\| `([a-z-]+)` \| `([^`]+)` \|", EXPORTS, flags=re.M)
    assert dict(found) == {name: known.file_name for name, known in FORMATS.items()}
    assert {name for name, _ in EXAMPLES} | {"json"} == set(FORMATS)
    knobs = re.findall(r"^\| `([a-z_]+)` \|", EXPORTS, flags=re.M)
    assert [name for name in knobs if name in KNOBS] == list(KNOBS)
    golden = ROOT / "tests" / "unit" / "launchfiles" / "golden" / "formats"
    for name, shown in EXAMPLES:
        whole = (golden / name / FORMATS[name].file_name).read_text(encoding="utf-8")
        for block in re.findall(r"```\w+\n(.*?)\n```", shown, flags=re.S):
            assert block in whole, name
