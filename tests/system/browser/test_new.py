"""The form: a question is asked, mended, and put in the place of another's limits."""

from playwright.sync_api import expect

from tests.system.browser.views import focused


def fill(page, **more):
    values = {"Model": "stories15m", "GPU": "cpu", "Nodes": "1", "GPUs per node": "2"}
    values |= {"Sequence length": "128", "Global batch size": "8", **more}
    for label, text in values.items():
        field(page, label).fill(text)


def field(page, label):
    """A field by its label, which a part of the form may have too."""
    return page.get_by_label(label, exact=True).and_(page.locator("input"))


def start(page):
    page.get_by_role("button", name="Start the study").click()


def test_a_study_is_started_and_what_was_decided_is_told_once(open_tab):
    page = open_tab("/new").page
    fill(page)
    expect(page.locator("#size")).to_contain_text(
        "2 CPU ranks, 1,024 tokens in each optimizer step"
    )
    expect(page.locator("#size")).to_contain_text("legal configurations, up to 20 probes")
    start(page)
    expect(page.locator("h1")).to_have_text("stories15m on cpu:2")
    expect(page.locator("#told")).to_contain_text("not stated")
    page.reload()
    expect(page.locator("#told")).to_have_count(0)


def test_errors_have_the_focus_and_lead_to_their_fields(open_tab):
    tab = open_tab("/new")
    tab.expected.add(422)
    fill(tab.page, **{"Sequence length": "many", "Global batch size": "-1"})
    start(tab.page)
    expect(tab.page.locator("#errors")).to_be_focused()
    assert tab.violations() == []
    tab.page.locator("#errors a").first.click()
    expect(tab.page.get_by_label("Sequence length")).to_be_focused()
    assert tab.page.get_by_label("Sequence length").get_attribute("aria-invalid") == "true"
    assert tab.page.get_by_label("Sequence length").input_value() == "many"
    tab.page.keyboard.press("Tab")
    assert focused(tab.page)["id"] == "f-workload-global-batch-size"


def test_an_open_study_is_put_on_these_terms(open_tab, service):
    tab = open_tab("/new")
    tab.expected.add(409)
    page = tab.page
    fill(page, **{"Global batch size": "12", "Probes at most": "3"})
    start(page)
    expect(page.locator("h1")).to_contain_text("stories15m")
    study_id = tab.path.rpartition("/")[2]

    tab.go("/new")
    fill(page, **{"Global batch size": "12", "Probes at most": "5"})
    start(page)
    expect(page.locator("#errors")).to_contain_text("See that study")
    assert tab.violations() == []
    assert page.get_by_label("Probes at most").input_value() == "5"
    page.get_by_label(f"Give {study_id} these limits").check()
    start(page)
    expect(page.locator("h1")).to_contain_text("stories15m")
    assert service.store.study(study_id).limits.max_probes == 5
