"""docs/exports.md: its examples are golden files, and its tables are complete."""

import re
from pathlib import Path

import pytest

from tests.unit.launchfiles.launching import ROOT
from tuner.core.configuration import KNOBS
from tuner.launchfiles import FORMATS

PAGE = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
GOLDEN = Path(__file__).parent / "golden" / "formats"
SHOWN = re.findall(
    r"^\*\*([a-z-]+)\*\*[^\n]*\n\n((?:```\w+\n.*?\n```\n\n)+)",
    PAGE.partition("## Examples")[2],
    flags=re.M | re.S,
)


@pytest.mark.parametrize(("name", "blocks"), SHOWN, ids=[name for name, _ in SHOWN])
def test_an_example_is_of_the_golden_file(name: str, blocks: str) -> None:
    golden = (GOLDEN / name / FORMATS[name].file_name).read_text(encoding="utf-8")
    for block in re.findall(r"```\w+\n(.*?)\n```", blocks, flags=re.S):
        assert block in golden


def test_every_format_has_a_row_and_an_example() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| `([^`]+)` \|", PAGE, flags=re.M)
    assert dict(rows) == {name: known.file_name for name, known in FORMATS.items()}
    assert {name for name, _ in SHOWN} | {"json"} == set(FORMATS)


def test_every_knob_has_a_row() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", PAGE, flags=re.M)
    assert [name for name in rows if name in KNOBS] == list(KNOBS)
