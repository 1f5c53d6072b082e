"""``docs/evidence.md`` from ``benchmarks/results/*.json``: ``make evidence``.

The tables between the page's markers, and a picture of each card in ``docs/images/``, are made of
what the result files hold; nothing is run.
"""

import json
from collections.abc import Sequence

import markdown
from common import RESULTS, ROOT
from evidence import Result, allocator, cards, is_card, overview, picture, picture_name

PAGE = ROOT / "docs" / "evidence.md"


def results() -> list[Result]:
    """All of them, by name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json"))
    return sorted(found, key=lambda result: str(result["name"]))


def rendered(text: str, found: Sequence[Result]) -> str:
    text = markdown.between(text, "overview", overview(found))
    text = markdown.between(text, "allocator", allocator(found))
    return markdown.between(text, "cards", cards([one for one in found if is_card(one)]))


def pictures(found: Sequence[Result]) -> dict[str, str]:
    """SVG of each card by its name beside the page."""
    drawn = {picture_name(one): picture(one) for one in found if is_card(one)}
    return {name: text for name, text in drawn.items() if text}


def main() -> None:
    found = results()
    for name, text in pictures(found).items():
        path = PAGE.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(f"written: docs/{PAGE.name}")


if __name__ == "__main__":
    main()
