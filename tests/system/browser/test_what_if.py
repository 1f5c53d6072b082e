"""Knobs that are moved, and what the page says then, with scripts and without."""

from playwright.sync_api import expect

from tests.system.browser.tabs import NARROW


def test_a_slider_is_moved_by_keys(open_tab, prepared):
    tab = open_tab(f"/studies/{prepared.done}/settings", width=NARROW)
    page = tab.page
    expect(page.locator("#sum")).to_be_in_viewport()
    total = page.locator("#sum").inner_text()
    slider = page.locator('input[type="range"]').first
    before, address = page.locator("#result h2").inner_text(), tab.path
    slider.focus()
    page.keyboard.press("End")
    expect(page.locator("#result h2")).not_to_have_text(before)
    expect(page.locator("#result")).to_have_attribute("aria-busy", "false")
    assert tab.path != address
    expect(page.locator("#sum")).not_to_have_text(total)
    assert slider.get_attribute("aria-valuetext")
    assert page.locator("#said").inner_text()
    chosen = page.locator("#result h2").inner_text()
    page.reload()
    expect(page.locator("#result h2")).to_have_text(chosen)
    page.locator("#to-best").click()
    expect(page.locator("#result h2")).to_contain_text("the best settings")


def test_without_scripts_the_form_is_sent(open_tab, prepared):
    tab = open_tab(f"/studies/{prepared.done}/settings", java_script_enabled=False)
    page = tab.page
    before = page.locator("#result h2").inner_text()
    page.locator(".segment", has_text="full").last.click()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#result h2")).not_to_have_text(before)
    assert "?" in tab.path
