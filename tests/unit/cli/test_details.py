"""One probe in full, as ``tuner probe`` shows it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tuner.cli.details import show_probe


def shown(lab: SimpleNamespace, **changes: Any) -> dict[str, str]:
    """The facts of a probe, by name."""
    measured = replace(lab.ok(0.1, 20), **changes)
    study = lab.study(("sharding=ddp,micro_batch_size=4", measured))
    console = Console(width=200)
    with console.capture() as capture:
        show_probe(console, study, study.probes[0])
    lines = (line.split(maxsplit=1) for line in capture.get().splitlines())
    return {line[0]: line[1].rstrip() for line in lines if len(line) == 2}


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ({"device": "cpu"}, None),
        ({"allocator": "native"}, None),
        (
            {"allocator": "native", "allocator_conf": "expandable_segments:True"},
            "native, configured as expandable_segments:True",
        ),
        ({"allocator": "cudaMallocAsync"}, "cudaMallocAsync, configured as usual"),
    ],
)
def test_an_allocator_that_is_not_torchs_usual_is_shown(
    lab: SimpleNamespace, hardware: dict[str, str], said: str | None
) -> None:
    assert shown(lab, hardware=hardware).get("allocator") == said


def test_clocks_and_notes_are_shown(lab: SimpleNamespace) -> None:
    clocks = {"sm_mhz": 1500.0, "throttle": ["sw_thermal_slowdown"]}
    found = shown(lab, hardware={"clocks": clocks}, notes=("a hot node",))
    assert found["clocks"] == "SM at 1500 MHz after the last step; slowed by sw_thermal_slowdown"
    assert found["note"] == "a hot node"
    assert not {"clocks", "note"} & shown(lab).keys()
