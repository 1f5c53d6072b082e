"""What SECURITY.md says of settings and limits is so."""

import re
from pathlib import Path

import pytest

from api.limits import BODY_S, LONGEST_TARGET, SECURITY_HEADERS
from api.pages.people import PAGE_HEADERS
from api.sessions import MOST_FIELDS, SESSION, VISIT, cookie
from api.settings import Settings
from tuner.store.records import Scope
from tuner.store.sessions import IDLE, LASTS

PAGE = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text(encoding="utf-8")
ELSEWHERE = {"TUNER_DB", "TUNER_KEY"}
"""Variables that commands read, too."""
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


def test_the_settings_that_it_names_are_there() -> None:
    named = set(re.findall(r"TUNER_[A-Z_]+", PAGE)) - ELSEWHERE
    assert {name.removeprefix("TUNER_").lower() for name in named} <= set(Settings.model_fields)
    assert named >= {"TUNER_ALLOWED_HOSTS", "TUNER_RATE_PER_S", "TUNER_MAX_BODY_BYTES"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("| headers | {},", "max_headers"),
        ("{} per second", "rate_per_s"),
        ("{} at once", "rate_burst"),
        ("| open requests of one, event streams among them | {} ", "max_concurrent"),
        ("| queued and running studies | {} ", "max_open_studies"),
    ],
)
def test_its_figures_are_the_defaults(text: str, value: str) -> None:
    assert text.replace("{}", f"{DEFAULTS[value]:g}") in PAGE


def test_its_sizes_are_the_limits() -> None:
    assert f"{DEFAULTS['max_header_bytes'] // 1024} KiB together" in PAGE
    assert f"| body | {DEFAULTS['max_body_bytes'] // 1024} KiB" in PAGE
    assert f"within {BODY_S:g} s" in PAGE
    assert f"| path and query | {LONGEST_TARGET // 1024} KiB" in PAGE


def test_every_scope_and_header_is_named() -> None:
    for scope in Scope:
        assert f"| `{scope}` |" in PAGE
    for value in SECURITY_HEADERS.values():
        assert value.partition(";")[0] in PAGE


def test_what_it_says_of_sessions_is_so() -> None:
    assert f"A session lasts {LASTS.days} days at most" in PAGE
    assert f"ends {IDLE.total_seconds() / 3600:g} hours after its last use" in PAGE
    assert f"a page's form has {MOST_FIELDS} fields at most" in PAGE
    assert f"`{cookie(SESSION, '', secure=True).partition('=')[0]}`" in PAGE
    assert f"`{VISIT}`" in PAGE


def test_what_it_says_of_pages_is_so() -> None:
    on_one_line = PAGE.replace("\n", " ")
    assert PAGE_HEADERS["Content-Security-Policy"] in on_one_line
    for name in PAGE_HEADERS:
        assert f"`{name}" in on_one_line
