import pytest
from rich.console import Console

from tuner.cli.console import Column, table_of
from tuner.cli.tables import probes_table
from tuner.core.study import ProbeState
from tuner.results.points import differing, fastest_first, rows_of


@pytest.fixture
def study(lab):
    return lab.study(
        ("sharding=full_shard,micro_batch_size=2,sync_each_batch=false", lab.ok(0.2, 20)),
        ("sharding=ddp,micro_batch_size=4", lab.oom(64)),
        ("sharding=full_shard,micro_batch_size=4", lab.ok(0.1, 40)),
        ("sharding=full_shard,micro_batch_size=2,sync_each_batch=false", lab.ok(0.3, 24)),
        ("sharding=ddp,micro_batch_size=1,activation_checkpointing=full", ProbeState.RUNNING),
        ("sharding=ddp,micro_batch_size=1", lab.crashed()),
    )


def drawn(study, width, best=None):
    rows = fastest_first(rows_of(study))
    knobs = differing([row.settings for row in rows])
    console = Console(width=width)
    with console.capture() as capture:
        console.print(probes_table(rows, knobs, width=width, per="rank", best=best))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_is_sorted_and_marked(study):
    best = rows_of(study)[2].settings
    lines = drawn(study, 64, best)
    assert lines == [
        "                 micro accum sync      needed tokens/s",
        "probe sharding   batch steps each ckpt    MiB per rank outcome",
        "─" * 62,
        "   *3 full_shard     4     1 -    none   40.0    1,281 ok",
        "  1,4 full_shard     2     2 no   none   24.0      512 ok",
        "    2 ddp            4     1 -    none  >65.0        - oom",
        "    5 ddp            1     4 yes  full      -        - running",
        "    6 ddp            1     4 yes  none      -        - crashed",
    ]


def test_where_no_memory_is_known_its_unit_is_no_small_one(lab):
    lines = drawn(lab.study(("sharding=ddp,micro_batch_size=1", lab.crashed())), 80)
    assert "GiB" in lines[1]


def test_cells_are_text_and_not_markup():
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table_of([Column("model", ["[bold]x[/bold] :smile:"])], 80))
    assert "[bold]x[/bold] :smile:" in capture.get()
