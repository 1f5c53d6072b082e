"""The application put together, and what SECURITY.md says of it."""

import re
from pathlib import Path

from api.app import SECURITY_HEADERS
from api.limits import BODY_S, LONGEST_TARGET
from api.pages.people import PAGE_HEADERS
from api.sessions import MOST_FIELDS, SESSION, VISIT, cookie
from api.settings import Settings
from tuner.store.access import IDLE, LASTS
from tuner.store.tables import Scope

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
OF_COMMANDS = {"TUNER_DB", "TUNER_KEY"}
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


def test_security_names_settings_figures_and_headers_as_they_are():
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
