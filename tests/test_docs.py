"""What the documentation names is there, and what is there is named."""

import re
from pathlib import Path

import pytest

from tuner.measurement import Outcome
from tuner.settings import KNOBS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if path.is_file()
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_is_explained(knob: str) -> None:
    if knob != "pp_size":  # of nanotron only, whose settings are not probed
        assert f"| `{knob}` |" in text("docs/knobs.md")


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_explained(outcome: Outcome) -> None:
    if outcome is not Outcome.CANCELLED:  # never shown: such a probe is given back
        assert f"| `{outcome}` |" in text("docs/knobs.md")


def test_every_package_is_in_the_architecture() -> None:
    page = text("docs/architecture.md")
    for package in ("tuner", "workers", "api"):
        for init in sorted((ROOT / package).rglob("__init__.py")):
            folder = init.parent.relative_to(ROOT)
            if len(folder.parts) <= 2:
                assert f"`{folder}/`" in page, folder


def test_every_decision_is_listed() -> None:
    page = text("docs/decisions/README.md")
    for record in (ROOT / "docs" / "decisions").glob("0*.md"):
        assert f"({record.name})" in page


def test_every_command_is_in_the_readme() -> None:
    page = text("README.md")
    for command in ("suggest", "probe", "calibrate", "studies list", "studies show", "export",
                    "db upgrade", "db check", "doctor"):  # fmt: skip
        assert f"`tuner {command}" in page


def test_every_target_of_the_makefile_is_explained() -> None:
    targets = re.findall(r"^([a-z-]+):.*?(## .+)?$", text("Makefile"), flags=re.M)
    assert {name for name, _ in targets} >= {"suggest", "test", "test-all", "check", "bench"}
    assert all(help_text for _, help_text in targets)
