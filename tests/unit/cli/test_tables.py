from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tuner.cli.console import Column, table_of
from tuner.cli.probe import show_probe
from tuner.cli.tables import common_text, probes_table, sizes_text
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.study import ProbeState, Study
from tuner.results.points import differing, fastest_first, rows_of


@pytest.fixture
def study(lab: SimpleNamespace) -> Study:
    return lab.study(
        ("sharding=full_shard,micro_batch_size=2,sync_each_batch=false", lab.ok(0.2, 20)),
        ("sharding=ddp,micro_batch_size=4", lab.oom(64)),
        ("sharding=full_shard,micro_batch_size=4", lab.ok(0.1, 40)),
        ("sharding=full_shard,micro_batch_size=2,sync_each_batch=false", lab.ok(0.3, 24)),
        ("sharding=ddp,micro_batch_size=1,activation_checkpointing=full", ProbeState.RUNNING),
        ("sharding=ddp,micro_batch_size=1", lab.crashed()),
    )


def drawn(study: Study, width: int, best: Settings | None = None) -> list[str]:
    rows = fastest_first(rows_of(study))
    knobs = differing([row.settings for row in rows])
    console = Console(width=width)
    with console.capture() as capture:
        console.print(probes_table(rows, knobs, width=width, per="rank", best=best))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_repetitions_are_one_row(study: Study) -> None:
    rows = rows_of(study)
    assert [row.ids for row in rows] == [(1, 4), (2,), (3,), (5,), (6,)]
    pooled = rows[0]
    assert pooled.needed_bytes == 24 * 2**20
    assert pooled.step_time.low is not None
    assert pooled.step_time.high is not None
    assert pooled.step_time.low <= 0.2
    assert pooled.step_time.high > 0.29


def test_rows_tell_outcome_and_lower_bounds(study: Study) -> None:
    rows = {row.ids[0]: row for row in rows_of(study)}
    assert rows[2].outcome == Outcome.OOM
    assert rows[2].at_least
    assert rows[2].needed_bytes == 65 * 2**20
    assert rows[5].outcome == "running"
    assert rows[6].outcome == Outcome.CRASHED
    assert rows[6].detail == "rank 0 raised RuntimeError: no such kernel"


def test_a_probe_that_ended_early_shows_its_step_and_is_no_failure(lab: SimpleNamespace) -> None:
    ended = replace(lab.ok(0.3, 24), outcome=Outcome.STOPPED_EARLY)
    settings = "sharding=full_shard,micro_batch_size=2"
    study = lab.study(("sharding=ddp,micro_batch_size=4", lab.ok(0.1, 40)), (settings, ended))
    row = rows_of(study)[1]
    assert (row.outcome, row.ran, row.needed_bytes) == (Outcome.STOPPED_EARLY, True, 24 * 2**20)
    assert row.step_time.value == pytest.approx(0.3, rel=0.01)
    table = probes_table(rows_of(study), ("sharding",), width=64)
    assert not table.rows[1].style
    assert drawn(study, 64)[-1].endswith("ended early")
    both = rows_of(lab.study((settings, lab.ok(0.2, 20)), (settings, ended)))[0]
    assert both.outcome == Outcome.OK
    assert both.step_time.value == pytest.approx(0.2, rel=0.01)


def test_the_table_is_sorted_and_marked(study: Study) -> None:
    best = rows_of(study)[2].settings
    lines = drawn(study, 64, best)
    assert lines == [
        "                 micro accum sync      memory tokens/s",
        "probe sharding   batch steps each ckpt    MiB per rank outcome",
        "─" * 62,
        "   *3 full_shard     4     1 -    none   40.0    1,281 ok",
        "  1,4 full_shard     2     2 no   none   24.0      512 ok",
        "    2 ddp            4     1 -    none  >65.0        - oom",
        "    5 ddp            1     4 yes  full      -        - running",
        "    6 ddp            1     4 yes  none      -        - crashed",
    ]


def test_common_knobs_are_told_beside_the_table(study: Study) -> None:
    rows = rows_of(study)
    knobs = differing([row.settings for row in rows])
    assert common_text(rows, knobs) == "everywhere: tp_size 1, pp_size 1, cpu_offload no"


def test_of_one_settings_what_says_most_is_shown() -> None:
    one = parse_settings("sharding=full_shard,activation_checkpointing=full")
    assert differing([one, one]) == (
        "sharding",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "activation_checkpointing",
    )


def test_cells_are_text_and_not_markup() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table_of([Column("model", ["[bold]x[/bold] :smile:"])], 80))
    assert "[bold]x[/bold] :smile:" in capture.get()


def test_a_size_has_its_interval() -> None:
    for value, low, high, text in (
        (12.5, 12.1, 12.9, "12.5 GiB (12.1 to 12.9)"),
        (12.5, 12.5, 12.5, "12.5 GiB"),
        (79.6, 70.1, 79.6, "up to 79.6 GiB (at least 70.1)"),
    ):
        quantity = Quantity(value=value, low=low, high=high, provenance=Provenance.PREDICTED)
        assert sizes_text(quantity) == text
    assert sizes_text(UNKNOWN) == "unknown"


def test_a_probe_shows_an_unusual_allocator_clocks_and_notes(lab: SimpleNamespace) -> None:
    def shown(**changes: Any) -> dict[str, str]:
        study = lab.study(("sharding=ddp,micro_batch_size=4", replace(lab.ok(0.1, 20), **changes)))
        console = Console(width=200)
        with console.capture() as capture:
            show_probe(console, study, study.probes[0])
        lines = (line.split(maxsplit=1) for line in capture.get().splitlines())
        return {line[0]: line[1].rstrip() for line in lines if len(line) == 2}

    expandable = {"allocator": "native", "allocator_conf": "expandable_segments:True"}
    for hardware, said in (
        ({"allocator": "native"}, None),
        (expandable, "native, configured as expandable_segments:True"),
        ({"allocator": "cudaMallocAsync"}, "cudaMallocAsync, configured as usual"),
    ):
        assert shown(hardware=hardware).get("allocator") == said
    clocks = {"sm_mhz": 1500.0, "throttle": ["sw_thermal_slowdown"]}
    found = shown(hardware={"clocks": clocks}, notes=("a hot node",))
    assert found["clocks"] == "SM at 1500 MHz after the last step; slowed by sw_thermal_slowdown"
    assert found["note"] == "a hot node"
    assert not {"clocks", "note"} & shown().keys()


def test_no_line_is_wider_than_the_terminal_nor_cut(study: Study) -> None:
    for width in (64, 80, 160):
        lines = drawn(study, width)
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        assert ("interval" in "".join(lines)) is (width > 100)
