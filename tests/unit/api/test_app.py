"""The application put together, and what SECURITY.md says of it."""

import re
from pathlib import Path

import anyio
from starlette.testclient import TestClient

from api.app import create_app
from api.limits import BODY_S, LONGEST_TARGET
from api.middleware import SECURITY_HEADERS
from api.pages.people import PAGE_HEADERS
from api.problems import ProblemCode
from api.sessions import MOST_FIELDS, SESSION, VISIT, cookie
from api.settings import Settings
from tuner.store import Store
from tuner.store.access import IDLE, LASTS
from tuner.store.tables import Scope

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
OF_COMMANDS = {"TUNER_DB", "TUNER_KEY"}
"""Variables that commands read, too."""
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


def test_what_is_not_there_is_a_problem(client: TestClient) -> None:
    for path in ("/nowhere", "/docs", "/redoc", "/tune/", "/tune/st-0/nothing"):
        response = client.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
        assert response.headers["content-type"] == "application/problem+json"


def test_other_methods_are_told_which_there_are(client: TestClient) -> None:
    for path, allowed in (
        ("/tune", "GET, HEAD, POST"),
        ("/tune/st-000000000000", "DELETE, GET, HEAD"),
        ("/tune/st-000000000000/events", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
    ):
        response = client.put(path, json={})
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert allowed in response.json()["detail"]


def test_requests_worked_at_side_by_side_are_few(store: Store) -> None:
    app = create_app(store, Settings(_env_file=None, threads=3))

    async def threads() -> float:
        async with app.router.lifespan_context(app):
            return anyio.to_thread.current_default_thread_limiter().total_tokens

    assert anyio.run(threads) == 3


# -- SECURITY.md and docs/api.md


def test_every_kind_of_problem_is_documented() -> None:
    table = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Errors")[2]
    assert set(re.findall(r"`([a-z]+_[a-z_]+|unavailable)`", table)) >= set(ProblemCode)


def test_security_names_settings_figures_and_headers_as_they_are() -> None:
    named = set(re.findall(r"TUNER_[A-Z_]+", PAGE)) - OF_COMMANDS
    assert {name.removeprefix("TUNER_").lower() for name in named} <= set(Settings.model_fields)
    assert named >= {"TUNER_ALLOWED_HOSTS", "TUNER_RATE_PER_S", "TUNER_MAX_BODY_BYTES"}
    on_one_line = PAGE.replace("\n", " ")
    for text in (
        f"| headers | {DEFAULTS['max_headers']},",
        f"{DEFAULTS['max_header_bytes'] // 1024} KiB together",
        f"{DEFAULTS['rate_per_s']:g} per second",
        f"{DEFAULTS['rate_burst']} at once",
        f"| open requests of one, event streams among them | {DEFAULTS['max_concurrent']} ",
        f"| queued and running studies | {DEFAULTS['max_open_studies']} ",
        f"| body | {DEFAULTS['max_body_bytes'] // 1024} KiB",
        f"within {BODY_S:g} s",
        f"| path and query | {LONGEST_TARGET // 1024} KiB",
        f"A session lasts {LASTS.days} days at most",
        f"ends {IDLE.total_seconds() / 3600:g} hours after its last use",
        f"a page's form has {MOST_FIELDS} fields at most",
        f"`{cookie(SESSION, '', secure=True).partition('=')[0]}`",
        f"`{VISIT}`",
        PAGE_HEADERS["Content-Security-Policy"],
        *(f"| `{scope}` |" for scope in Scope),
        *(value.partition(";")[0] for value in SECURITY_HEADERS.values()),
        *(f"`{name}" for name in PAGE_HEADERS),
    ):
        assert text in on_one_line, text
