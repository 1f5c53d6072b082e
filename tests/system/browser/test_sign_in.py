"""Signing in with a key, and what becomes of a session that has ended."""

import pytest
from playwright.sync_api import expect

from tests.system.browser.tabs import NARROW, THEMES
from tuner.store.access import Keys
from tuner.store.tables import Scope


@pytest.fixture(scope="module")
def keys(guarded):
    made = Keys(guarded.store.transactions)
    return {scope: made.create(f"{scope}-key", scope)[1] for scope in (Scope.READ, Scope.SUBMIT)}


def signed_in(tab, key):
    tab.page.get_by_label("Key").fill(key)
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("button", name="Sign out")).to_be_visible()
    return tab


def test_who_has_a_key_comes_in_and_goes_out(open_tab, guarded, keys):
    tab = open_tab("/new?workload.model=stories15m", base=guarded.url, width=NARROW)
    tab.expected.add(401)
    for theme in THEMES:
        tab.page.emulate_media(color_scheme=theme)
        assert tab.violations() == []
    assert tab.overflow_px <= 0
    assert tab.path.startswith("/sign-in?next=/new")
    tab.page.get_by_label("Key").fill("tuner_" + "0" * 61)
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("alert")).to_have_text("This key is not known, or was revoked.")
    signed_in(tab, keys[Scope.SUBMIT])
    expect(tab.page.get_by_role("combobox", name="Model")).to_have_value("stories15m")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.locator("h1")).to_have_text("Sign in")
    tab.go("/")
    expect(tab.page.locator("h1")).to_have_text("Sign in")
