"""Every link of the documentation leads somewhere, and every page can be reached."""

import re

from tests.system.docs.pages import PAGES, anchors, name_of, text

LINK = re.compile(r"\]\(([^)\s]+)\)")


def targets(page):
    """Of all links, but not those in code."""
    without_code = re.sub(
        r"^```.*?^```$|`[^`\n]*`(?!\])", "", text(name_of(page)), flags=re.M | re.S
    )
    return [link for link in LINK.findall(without_code) if not link.startswith(("http:", "https:"))]


def test_links_and_their_anchors_lead_somewhere():
    for page, target in ((one, target) for one in PAGES for target in targets(one)):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), (page, target)
        assert not anchor or anchor in anchors(there), (page, target)
