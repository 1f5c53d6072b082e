"""What holds of every page: nothing inaccessible, nothing too wide, fit for paper."""

import pytest

from tests.system.browser.tabs import HUGE, NARROW, THEMES
from tests.system.browser.views import MOST_LINE_EM, longest_line_em

PAGES = {
    "studies": "/",
    "new": "/new?workload.model=llama-3.1-8b",
    "study": "/studies/{done}",
    "many": "/studies/{many}?outcome=oom",
    "running": "/studies/{running}",
    "failed": "/studies/{failed}",
    "probe": "/studies/{done}?probe={probe}",
    "what_if": "/studies/{done}/settings",
    "choose": "/compare",
    "compare": "/compare?ids={done},{other},{many},{failed}",
    "hostile_study": "/studies/{markup}",
    "hostile_compare": "/compare?ids={long},{right_to_left},{emoji}",
    "nothing": "/studies/st-000000000000",
}

# Their templates are another page's too: looked at before a release.
LIKE_OTHERS = {"choose", "failed", "hostile_compare", "many", "probe", "running"}


@pytest.fixture
def paths(prepared, service):
    probe = service.store.study(prepared.done).probes[1].id
    ids = {name: getattr(prepared, name) for name in ("done", "other", "many", "failed", "running")}
    known = {**ids, **prepared.hostile, "probe": probe}
    return {name: path.format(**known) for name, path in PAGES.items()}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LIKE_OTHERS else []) for name in PAGES],
)
def test_every_page_is_accessible_and_as_wide_as_its_window(open_tab, paths, name):
    tab = open_tab()
    tab.expected |= {404} if name == "nothing" else set()
    page = tab.go(paths[name])
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        assert tab.violations() == [], theme
    for width in (HUGE, NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        assert tab.overflow_px <= 0, width
        assert longest_line_em(page) < MOST_LINE_EM, width
    assert tab.violations() == [], "narrow"
    assert page.locator("h1").count() == 1
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav:visible, button:visible").count() == 0
