"""An open study's page moves while somebody looks, and keeps what they have opened and chosen."""

import pytest
from playwright.sync_api import expect

from tests.system.browser.prepared import running
from tests.unit.api.studies import finish, probe
from tuner.core.study import OPEN

BATCHES = iter(range(32, 4096, 32))
PLACES = """() => {
  const top = document.getElementById("evidence-title").getBoundingClientRect().top;
  return { window: top, document: top + window.scrollY };
}"""
"""Pixels from the top of the window, and of the page, to a heading."""


@pytest.fixture
def study(service):
    study_id = running(service.store, batch=next(BATCHES))
    yield study_id
    if service.store.study(study_id).state in OPEN:
        finish(service.store, study_id)


def test_a_page_follows_its_study_to_the_end(open_tab, service, study):
    tab = open_tab(f"/studies/{study}")
    page = tab.page
    expect(page.locator("#answer-title")).to_have_text("Best so far")
    expect(page.locator(".budgets label")).to_have_text("1 of 4 probes")
    page.locator("#why > summary").click()
    page.locator("label[for=tab-settings]").click()
    page.locator("#probes-scroll").focus()
    page.evaluate("document.getElementById('evidence-title').scrollIntoView()")
    before = page.evaluate(PLACES)
    page.evaluate("document.getSelection().selectAllChildren(document.querySelector('.settings'))")
    chosen = page.evaluate("document.getSelection().toString()")

    probe(service.store, study)
    expect(page.locator(".budgets label")).to_have_text("2 of 4 probes")
    expect(page.locator("#probes-table tbody tr")).to_have_count(2)
    expect(page.locator("#why")).to_have_attribute("open", "")
    expect(page.locator("#text-settings")).to_be_visible()
    expect(page.locator("#probes-scroll")).to_be_focused()
    assert page.evaluate("document.getSelection().toString()") == chosen
    after = page.evaluate(PLACES)
    assert after["document"] > before["document"], "something above it has grown"
    assert abs(after["window"] - before["window"]) <= 2, "and what is read has not moved"
    assert page.locator("#said").inner_text()
    page.evaluate("document.getSelection().removeAllRanges()")

    finish(service.store, study)
    expect(page.locator("#answer-title")).to_have_text("Run this")
    expect(page.locator(".state-done")).to_be_visible()
    expect(page.locator("#cancel")).to_have_count(0)
    expect(page.locator("[data-live]")).to_have_count(0)
    assert tab.violations() == []


def test_a_study_is_cancelled(open_tab, service, study):
    watcher = open_tab(f"/studies/{study}").page
    page = open_tab(f"/studies/{study}").page
    button = page.get_by_role("button", name="Yes, cancel it")
    expect(button).to_be_hidden()
    page.get_by_text("Cancel this study").click()
    button.click()
    expect(page.locator(".state-cancelled")).to_be_visible()
    expect(watcher.locator(".state-cancelled")).to_be_visible()


def test_without_scripts_the_page_is_loaded_again(open_tab, service, study):
    tab = open_tab(f"/studies/{study}", java_script_enabled=False)
    tab.page.get_by_role("link", name="load it again every 10 s").click()
    expect(tab.page.locator("noscript").first).to_be_attached()
    assert tab.path.endswith("?refresh=10")
    assert tab.page.locator("meta[http-equiv=refresh]").get_attribute("content") == "10"
    tab.page.get_by_text("Cancel this study").click()
    tab.page.get_by_role("button", name="Yes, cancel it").click()
    expect(tab.page.locator(".state-cancelled")).to_be_visible()
