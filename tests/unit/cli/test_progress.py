import re
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from rich.console import Console

from tuner.cli.progress import LiveTable, terminal, to_stderr
from tuner.client.answered import PlainLines
from tuner.core.measurement import Fidelity
from tuner.core.study import ProbeState, StudyState

FIRST = "sharding=full_shard,micro_batch_size=4"
SECOND = "sharding=ddp,micro_batch_size=4"
THIRD = "sharding=ddp,micro_batch_size=1"


@pytest.fixture(autouse=True)
def moments(monkeypatch):
    """Of the display's clock: one look is a thousandth of a second after the other."""
    looks = count(1000.0, 0.001)
    monkeypatch.setattr("tuner.cli.progress.time", SimpleNamespace(monotonic=lambda: next(looks)))
    return looks


@pytest.fixture
def finished(lab):
    return lab.study((FIRST, lab.ok(0.1, 20)), (SECOND, lab.oom(64)), (THIRD, lab.crashed()))


def without(study, *states):
    """``study`` as it was when its last probes were in ``states``."""
    kept = len(study.probes) - len(states)
    pairs = zip(study.probes[kept:], states, strict=True)
    last = tuple(replace(p, state=s, measurement=None, finished_at=None) for p, s in pairs)
    return replace(study, probes=(*study.probes[:kept], *last))


def test_plain_lines_are_one_for_each_finished_probe(finished, capsys):
    queued, running = ProbeState.QUEUED, ProbeState.RUNNING
    with PlainLines(replace(finished, probes=()), to_stderr) as lines:
        lines.show(without(finished, running, queued, queued))
        lines.show(without(finished, running, queued))
        lines.show(without(finished, queued))
        lines.show(finished)
        lines.show(finished)
    with PlainLines(without(finished, ProbeState.RUNNING), to_stderr) as lines:
        lines.show(finished)  # what was there before is passed over
    assert isinstance(terminal().progress_of(finished), PlainLines)  # for files and pipes
    out, err = capsys.readouterr()
    *lines_said, last = err.splitlines()
    assert last.startswith("probe #3 (1/5): crashed")
    batch = "micro_batch_size=4,gradient_accumulation_steps=1"
    assert out == ""
    assert lines_said == [
        f"probe #1 (1/5): ok, 20.0 MiB, 1,281 tokens/s per rank [sharding=full_shard,{batch}]",
        f"probe #2 (2/5): out of memory, more than 65.0 MiB [sharding=ddp,{batch}]",
        "probe #3 (3/5): crashed, rank 0 raised RuntimeError: no such kernel"
        " [sharding=ddp,micro_batch_size=1,gradient_accumulation_steps=4]",
    ]


def test_dry_runs_on_the_way_take_no_number_of_a_probe(finished, capsys):
    probe = finished.probes[0]
    wanted = replace(probe.request, fidelity=Fidelity.PREDICTED)
    with PlainLines(replace(finished, probes=()), to_stderr) as lines:
        lines.show(replace(finished, probes=(replace(probe, id=-1, request=wanted), probe)))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("dry run #d1: ok")
    assert second.startswith("probe #1 (1/5): ok")


def frames(study, *later, width=80, height=24):
    """What a terminal gets to see, as text."""
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture, LiveTable(console, study) as table:
        for one in later:
            table.show(one)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capture.get())


def test_the_live_table_shows_probes_what_runs_and_the_budget(finished):
    text = frames(finished, without(finished, ProbeState.RUNNING))
    assert "st-0123456789ab: tiny on cpu:2 (accelerate), global batch 8, sequence 32" in text
    assert re.search(r"\*1 +full_shard .* 20\.0 .* 1,281  ok", text)
    assert re.search(r"2 +ddp .* >65\.0 .* oom", text)
    assert re.search(r"3 +ddp .* running", text)
    assert re.search(r"2/5 probes +0\.\d s +probe #3 running for 0 s", text)
    assert "waiting for this machine" in frames(finished, without(finished, ProbeState.QUEUED))
    assert "choosing the next probe" in frames(finished, replace(finished, probes=()))


def test_the_live_table_says_what_a_worker_is_at(finished):
    checking = replace(
        finished, state=StudyState.RUNNING, reason="checking the answer against one process"
    )
    assert "checking the answer against one process, 0 s" in frames(finished, checking, width=120)
    waiting = replace(checking, reason="waiting for st-1 on this machine")
    assert "waiting for st-1 on this machine, 0 s" in frames(
        finished, without(waiting, ProbeState.QUEUED), width=120
    )
    # a probe that runs is what it is at
    shown = frames(finished, without(waiting, ProbeState.RUNNING), width=120)
    assert "running for" in shown
    assert "waiting" not in shown
    queued = replace(finished, state=StudyState.QUEUED, probes=())
    assert "starting a worker" in frames(finished, queued)


def test_quiet_shows_nothing_on_the_way(finished, capsys):
    quiet = terminal(quiet=True)
    quiet.note("something")
    with quiet.progress_of(replace(finished, probes=())) as lines:
        lines.show(finished)
    assert capsys.readouterr() == ("", "")
