"""The list of studies, and studies side by side."""

from playwright.sync_api import expect

from tests.system.browser.tabs import NARROW
from tests.unit.api.studies import MEASURED, question_of
from tuner.core.study import Limits, StudyState


def test_without_scripts_studies_are_found_and_compared(open_tab, prepared):
    tab = open_tab("/", java_script_enabled=False, width=NARROW)
    tab.page.locator("#find-state").select_option("failed")
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


def test_a_screen_of_900_pixels_shows_25_studies(open_tab, service, prepared):
    for number in range(25):
        workload = {**MEASURED["workload"], "global_batch_size": 5000 + 2 * number}
        study = service.store.ask(question_of({**MEASURED, "workload": workload}), Limits())
        service.store.move(study.id, StudyState.CANCELLED)
    tab = open_tab("/?sort=model")
    rows = tab.page.locator("tr.study").all()
    assert sum(row.bounding_box()["y"] + row.bounding_box()["height"] <= 900 for row in rows) >= 25
    tab.page.get_by_role("link", name="batch").click()
    expect(tab.page.locator("th[aria-sort]")).to_have_text("batch")
    texts = tab.page.locator("tr.study > :nth-child(4)").all_inner_texts()
    batches = [int(text.replace(",", "")) for text in texts]
    assert batches == sorted(batches, reverse=True)
