"""Signing in with a key, and what becomes of a session that has ended."""

import pytest
from playwright.sync_api import expect
from sqlalchemy import delete

from tests.system.browser.conftest import OpenTab, Service
from tests.system.browser.tabs import NARROW, THEMES, Tab
from tuner.store.access import Keys
from tuner.store.tables import Scope, SessionRow


@pytest.fixture(scope="module")
def keys(guarded: Service) -> dict[Scope, str]:
    """A key of each of two scopes."""
    made = Keys(guarded.store.transactions)
    return {scope: made.create(f"{scope}-key", scope)[1] for scope in (Scope.READ, Scope.SUBMIT)}


def signed_in(tab: Tab, key: str) -> Tab:
    """Signs in where the tab is."""
    tab.page.get_by_label("Key").fill(key)
    tab.page.get_by_role("button", name="Sign in").click()
    expect(tab.page.get_by_role("button", name="Sign out")).to_be_visible()
    return tab


def test_who_has_a_key_comes_in_and_goes_out(
    open_tab: OpenTab, guarded: Service, keys: dict[Scope, str]
) -> None:
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


def test_a_key_that_may_read_is_offered_no_more(
    open_tab: OpenTab, guarded: Service, keys: dict[Scope, str]
) -> None:
    tab = signed_in(open_tab("/", base=guarded.url, java_script_enabled=False), keys[Scope.READ])
    expect(tab.page.locator("main").get_by_role("link", name="New study")).to_have_count(0)
    tab.expected.add(403)
    tab.go("/new")
    expect(tab.page.locator("h1")).to_be_visible()


def test_a_form_of_a_session_that_has_ended_is_not_lost(
    open_tab: OpenTab, guarded: Service, keys: dict[Scope, str]
) -> None:
    tab = signed_in(open_tab("/new", base=guarded.url), keys[Scope.SUBMIT])
    tab.expected.add(401)
    tab.page.get_by_role("combobox", name="Model").fill("stories15m")
    with guarded.store.transactions.write() as session:
        session.execute(delete(SessionRow))
    tab.page.get_by_role("button", name="Start the study").click()
    expect(tab.page.locator("main")).to_contain_text("Nobody is signed in here any more")
    tab.page.get_by_role("link", name="Sign in").click()
    signed_in(tab, keys[Scope.SUBMIT])
    expect(tab.page.get_by_role("combobox", name="Model")).to_have_value("stories15m")
