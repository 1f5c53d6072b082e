"""What holds for every chart: it is well-formed, safe, named, and looks as it did.

``TUNER_WRITE_GOLDEN=1`` writes the golden files instead of comparing.
"""

import os
import re
from pathlib import Path

import pytest

from api.pages.charts import progress, small_multiples
from tests.unit.pages.charts.examples import HOSTILE, bar, everything, hostile, parsed, scattered

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(everything())
EMPTY = {
    "memory": bar(),
    "scatter": scattered(()),
    "progress": progress((), per="GPU"),
    "knobs": small_multiples((), per="GPU"),
}


def all_of(root):
    return [item for element in root.iter() for item in element.items()]


@pytest.mark.parametrize("name", NAMES)
def test_golden_files(name):
    golden = GOLDEN / f"{name}.html"
    written = str(everything()[name]).replace("><", ">\n<") + "\n"
    if os.environ.get("TUNER_WRITE_GOLDEN"):
        golden.write_text(written, encoding="utf-8")
    assert written == golden.read_text(encoding="utf-8")


def test_nothing_that_a_strict_policy_forbids():
    for chart in (*everything().values(), *hostile().values(), *EMPTY.values()):
        root = parsed(chart)
        tags = {element.tag for element in root.iter()}
        assert not tags & {"script", "style", "foreignObject", "image", "iframe", "animate", "set"}
        for name, value in all_of(root):
            assert not name.startswith("on")
            assert name not in {"style", "stroke", "color", "font-size", "font-family"}
            assert name != "fill" or value.startswith("url(#"), value


@pytest.mark.parametrize("name", NAMES)
def test_hostile_words_are_text(name):
    chart = hostile()[name]
    clean = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    root = parsed(chart)
    everywhere = [*root.itertext(), *(value for _, value in all_of(root))]
    assert any(clean in words for words in everywhere), "the whole is kept somewhere"
    assert "<script" not in chart
    assert all(len(words) < 60 for e in root.iter("text") for words in e.itertext())


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_named_and_described_and_references_lead_somewhere(name):
    root = parsed(everything()[name])
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    by_id = {element.get("id"): element for element in root.iter()}
    plots = [element for element in root.iter("svg") if element.get("role")]
    assert plots
    for plot in plots:
        title = by_id[plot.get("aria-labelledby")]
        description = by_id[plot.get("aria-describedby")]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text
        assert (description.text or "").endswith(".")
    referred = {use.get("href", "").removeprefix("#") for use in root.iter("use")}
    referred |= {m for _, value in all_of(root) for m in re.findall(r"^url\(#(.*)\)$", value)}
    assert referred <= set(ids)
