"""Every link of the documentation leads somewhere, and every page can be reached."""

import re
from pathlib import Path

from tests.system.docs.pages import PAGES, ROOT, anchors, name_of, text

LINK = re.compile(r"\]\(([^)\s]+)\)")
INDEX = ROOT / "docs" / "index.md"


def targets(page: Path) -> list[str]:
    """Of all links, but not those in code."""
    without_code = re.sub(
        r"^```.*?^```$|`[^`\n]*`(?!\])", "", text(name_of(page)), flags=re.M | re.S
    )
    return [link for link in LINK.findall(without_code) if not link.startswith(("http:", "https:"))]


def test_links_and_their_anchors_lead_somewhere() -> None:
    for page, target in ((one, target) for one in PAGES for target in targets(one)):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), (page, target)
        assert not anchor or anchor in anchors(there), (page, target)


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / target.partition("#")[0]).resolve() for target in targets(INDEX)}
    assert {page for page in PAGES if page.parent == INDEX.parent} <= {INDEX, *listed}


def test_every_picture_has_words_and_is_shown() -> None:
    shown = [
        link for page in PAGES for link in re.findall(r"!\[(.*?)\]\((.*?)\)", text(name_of(page)))
    ]
    assert all(words for words, _ in shown)
    kept = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert kept == {Path(link).name for _, link in shown}


def test_anchors_are_those_of_github() -> None:
    found = anchors(ROOT / "docs" / "knobs.md")
    assert {"sync_each_batch", "micro_batch_size-and-gradient_accumulation_steps"} <= found
    assert "nowhere" not in found
