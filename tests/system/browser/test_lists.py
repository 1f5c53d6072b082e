"""The list of studies, and studies side by side."""

from playwright.sync_api import expect

from tests.system.browser.tabs import NARROW


def test_without_scripts_studies_are_found_and_compared(open_tab, prepared):
    tab = open_tab("/", java_script_enabled=False, width=NARROW)
    tab.page.get_by_label("State").select_option("failed")
    tab.page.get_by_role("button", name="Show").click()
    expect(tab.page.locator(f"#{prepared.failed}")).to_be_visible()
    expect(tab.page.locator(".state-done")).to_have_count(0)
    tab.page.get_by_role("link", name="Show all").click()
    for study in (prepared.done, prepared.many):
        tab.page.locator(f"#{study} input").check()
    tab.page.get_by_role("button", name="Compare those ticked").click()
    expect(tab.page.locator("thead .compared-name")).to_have_count(2)
    tab.page.get_by_label("Only what differs").check()
    expect(tab.page.locator("tr.same:visible")).to_have_count(0)
