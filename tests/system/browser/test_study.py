"""A study's page under somebody's hands: sorting, choosing, copying, and looking at evidence."""

import pytest
from playwright.sync_api import expect

from tests.system.browser.tabs import NARROW
from tests.system.browser.views import focused


def column(page, key):
    """Texts of a column of the table of probes, of the rows that are shown."""
    keys = [head.get_attribute("data-key") for head in page.locator("#probes th[data-key]").all()]
    place = keys.index(key) + 1
    cells = page.locator(f"#probes tbody tr:visible > :nth-child({place})")
    return [text.strip() for text in cells.all_inner_texts()]


def numbers(texts):
    return [float(text.lstrip("> ").replace(",", "")) for text in texts if text != "-"]


def head(page, key):
    return page.locator(f'#probes th[data-key="{key}"]')


def test_the_table_is_sorted_and_filtered_in_place(open_tab, prepared):
    many = open_tab(f"/studies/{prepared.many}")
    page = many.page
    page.locator("#probes > summary").click()
    assert numbers(column(page, "speed")) == sorted(numbers(column(page, "speed")), reverse=True)
    head(page, "memory").locator("a").click()
    expect(head(page, "memory")).to_have_attribute("aria-sort", "descending")
    found = numbers(column(page, "memory"))
    assert found == sorted(found, reverse=True)
    head(page, "memory").locator("a").click()
    expect(head(page, "memory")).to_have_attribute("aria-sort", "ascending")
    assert numbers(column(page, "memory")) == sorted(found)
    assert "sort=memory" in many.path
    total = len(column(page, "id"))
    page.locator('#probes [data-outcome="oom"]').click()
    expect(page.locator('#probes [data-outcome="oom"]')).to_have_attribute("aria-current", "true")
    assert column(page, "outcome") == ["out of memory"] * (total // 5)
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


SCREENS = 3
"""That a study has at 1440 by 900 pixels before its evidence, at most."""


def test_the_evidence_begins_within_three_screens(open_tab, prepared):
    for study in (prepared.done, prepared.many, prepared.running):
        page = open_tab(f"/studies/{study}").page
        top = page.locator("#evidence").bounding_box()["y"]
        assert top <= SCREENS * 900, study


def test_a_mark_says_what_it_is_and_leads_to_its_row(open_tab, prepared):
    page = open_tab(f"/studies/{prepared.many}").page
    mark = page.locator(".chart-scatter .chart-best > a")
    mark.locator("use").hover(force=True)
    tip = page.locator(".chart-tip")
    expect(tip).to_contain_text("tokens/s")
    expect(tip).to_contain_text("micro_batch_size")
    row = page.locator(mark.get_attribute("href"))
    expect(row).to_be_hidden()
    mark.locator("use").click(force=True)
    expect(row).to_be_in_viewport()
    assert page.evaluate("document.querySelector('tr:target').id") == row.get_attribute("id")
    page.keyboard.press("Tab")
    page.locator(".chart-progress a").first.focus()
    expect(tip).to_contain_text("5: out of memory")


def test_what_is_outside_the_crowd_is_a_zoom_away(open_tab, prepared):
    page = open_tab(f"/studies/{prepared.many}").page
    plot = page.locator(".chart-scatter .chart-plot")
    ticks = plot.locator(".chart-x text")
    before = ticks.all_text_contents()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 200, steps=4)
    page.mouse.up()
    assert ticks.all_text_contents() != before
    button = page.locator(".chart-scatter [data-zoom]")
    expect(button).to_have_text("Back to the crowd")
    button.click()
    assert ticks.all_text_contents() == before
    expect(button).to_have_text("Show all")


def test_tabs_show_what_is_copied(open_tab, prepared):
    tab = open_tab(f"/studies/{prepared.done}", permissions=["clipboard-read", "clipboard-write"])
    page = tab.page
    page.get_by_text("command", exact=True).click()
    panel = page.locator("#text-launch")
    shown = panel.locator("code")
    expect(shown).to_be_visible()
    panel.get_by_role("button", name="Copy").click()
    expect(page.locator("#copied")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == shown.text_content()


def test_all_of_a_page_is_reached_by_keyboard_and_is_seen(open_tab, prepared):
    page = open_tab(f"/studies/{prepared.done}").page
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    seen = []
    for _ in range(200):
        page.keyboard.press("Tab")
        found = focused(page)
        if found["tag"] == "BODY":
            break
        assert found["outline"] >= 2, found
        assert found["width"] > 0, found
        seen.append(found)
    ids = {one["id"] for one in seen}
    texts = {one["text"] for one in seen}
    assert "changes-scroll" in ids
    assert sum(one.startswith("tab-") for one in ids) == 1, "arrows change tabs"
    assert {"Studies", "What if…", "Compare", "Ask like this", "JSON", "Copy"} <= texts
    assert sum(one["tag"] == "SUMMARY" for one in seen) == page.locator("summary:visible").count()


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_what_moves_stands_still_where_that_is_wanted(open_tab, prepared, motion, moves):
    tab = open_tab(f"/studies/{prepared.running}", reduced_motion=motion)
    expect(tab.page.locator(".state-running").first).to_be_visible()
    assert (tab.page.evaluate("document.getAnimations().length") > 0) == moves


def test_without_scripts_links_do_what_scripts_do(open_tab, prepared):
    tab = open_tab(f"/studies/{prepared.many}", width=NARROW, java_script_enabled=False)
    page = tab.page
    page.locator("#probes > summary").click()
    page.locator('#probes [data-outcome="oom"]').click()
    expect(page.locator('#probes [data-outcome="oom"]')).to_have_attribute("aria-current", "true")
    page.wait_for_load_state()
    assert set(column(page, "outcome")) == {"out of memory"}
    head(page, "id").locator("a").click()
    expect(head(page, "id")).to_have_attribute("aria-sort", "ascending")
    page.wait_for_load_state()
    found = [int(text.lstrip("#")) for text in column(page, "id")]
    assert found == sorted(found)
    assert set(column(page, "outcome")) == {"out of memory"}
    page.locator("label[for=tab-launch]").click()
    expect(page.locator("#text-launch")).to_be_visible()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    page.locator("#probes tbody a").first.click()
    expect(page.locator("h1")).to_contain_text(f"Probe #{found[0]}")
