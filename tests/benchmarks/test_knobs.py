"""The pictures of docs/knobs.md are those of the kept figures, and say in words what they show."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "knobs.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
IMAGES = ROOT / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def knobs(benchmark) -> Any:
    return benchmark("knobs")


def step(knob: str, value: str) -> dict[str, Any]:
    (row,) = [one for one in RESULT["steps"] if (one["knob"], one["value"]) == (knob, value)]
    return row


def peak(row: dict[str, Any]) -> float:
    return max(sum(moment["gib"].values()) for moment in row["moments"])


def test_pictures_are_drawn_of_what_is_kept(knobs) -> None:
    for name, text in knobs.pictures(RESULT).items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, f"make docs draws {name}"


def test_the_page_s_tables_are_of_what_is_kept(benchmark) -> None:
    assert benchmark("knob_tables").filled(PAGE, RESULT) == PAGE


def test_the_file_is_as_the_program_writes_it(knobs) -> None:
    kept = (ROOT / "benchmarks" / "results" / "knobs.json").read_text(encoding="utf-8")
    assert knobs.as_text(RESULT) == kept


def test_what_is_drawn_is_what_is_predicted() -> None:
    """The page says so: cuBLAS's workspaces and what blocks have beyond are no tensors."""
    for row in RESULT["steps"]:
        tensors = row["allocated_value_gib"] - row["beyond_tensors_gib"]
        assert abs(tensors - peak(row)) < 0.02 + 0.001 * peak(row), row["knob"]


def test_whole_gradients_are_what_deferred_synchronisation_keeps() -> None:
    on, off = (step("sync_each_batch", value) for value in ("true", "false"))
    whole = [
        max(m["gib"].get("gradients_unsharded", 0) for m in row["moments"]) for row in (on, off)
    ]
    assert whole[0] < 4
    assert whole[1] > 60
    assert on["fits"]
    assert not off["fits"]


def test_every_picture_is_named_described_and_safe_on_dark_pages(knobs) -> None:
    for text in knobs.pictures(RESULT).values():
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        named = {
            child.get("id"): child for child in root if child.tag in (f"{SVG}title", f"{SVG}desc")
        }
        assert root.get("aria-labelledby") == " ".join(named)
        assert all(len(child.text or "") > 20 for child in named.values())
        assert "prefers-color-scheme: dark" in root.findtext(f"{SVG}style", "")
        inked = [one for one in root.iter(f"{SVG}text") if not one.get("class")]
        assert inked == []


def test_areas_are_as_high_as_their_figures(knobs, benchmark) -> None:
    drawings = benchmark("knob_drawings")
    row = step("sync_each_batch", "false")
    paths = ElementTree.fromstring(drawings.picture_of_steps([row])).iter(f"{SVG}path")
    tops = [
        float(point.split(",")[1])
        for path in paths
        for point in path.get("d", "").strip("MZ").replace("L", " ").split()
    ]
    top_gib = 1.12 * max(row["limit_gib"], peak(row))
    assert min(tops) == pytest.approx(
        drawings.TOP + drawings.HEIGHT * (1 - peak(row) / top_gib), abs=0.1
    )


def test_stairs_are_closed_and_join_what_is_level(benchmark) -> None:
    drawing = benchmark("drawing")
    path = drawing.stairs([0.0, 10.0, 20.0], 30.0, [5.0, 5.0, 1.0], [9.0, 9.0, 9.0])
    assert path == "M0.0,5.0 20.0,5.0 20.0,1.0 30.0,1.0L30.0,9.0 0.0,9.0Z"


def test_ticks_are_round_and_start_at_zero(benchmark) -> None:
    assert benchmark("drawing").ticks(102) == [0, 25, 50, 75, 100]


@pytest.mark.long
def test_a_dry_run_now_finds_what_is_kept(knobs) -> None:
    knob = knobs.COMPARED[0]
    kept = [step(knob.knob, value)["allocated_value_gib"] for value in knob.values]
    found = knobs.predicted([knob.question(value) for value in knob.values])
    assert [row["allocated_value_gib"] for row in found] == pytest.approx(kept, rel=0.002)
