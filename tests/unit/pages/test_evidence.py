"""One probe in full, and failures in short."""

from dataclasses import replace

import pytest

from api.pages.evidence import (
    LONGEST_LINE,
    LONGEST_LINE_IN_SHORT,
    MOST_LOGS,
    evidence_of,
    trouble_of,
)
from tests.unit.pages.made import GIB, crashed, ok, oom, question, study
from tuner.core.measurement import Outcome


def test_what_went_well():
    clocks = {"sm_mhz": 1500.0, "power_w": 412.5, "throttle": ["sw_power_cap"]}
    measured = replace(
        ok(2.0, 1, 20 * GIB),
        hardware={"device": "NVIDIA H200", "clocks": clocks},
        notes=("SM clocks differ by 14%", "another"),
    )
    made = study(question(), [measured])
    found = evidence_of(made, made.probes[0])
    facts = dict(found.facts)
    assert (found.outcome, found.ran) == ("ok", True)
    assert dict(found.settings)["sharding"] == "ddp"
    assert facts["memory"] == "20.0 GiB allocated per GPU"
    assert facts["outside the allocator"] == "256 MiB"
    assert facts["limit"] == "fits in 76.0 GiB"
    assert facts["step"].startswith("2.01 s (80% interval ")
    assert facts["loss"] == "4.5000 in the first step, 4.2500 in the last"
    assert facts["hardware"] == "device NVIDIA H200"
    assert facts["clocks"].startswith("SM at 1500 MHz, 412 W")
    assert facts["cost"] == "12 s, 24 device-seconds"
    assert [text for name, text in found.facts if name == "note"] == list(measured.notes)
    assert found.phases == (("forward", "10.0 GiB"), ("backward", "20.0 GiB"))
    assert [rank for rank, _ in found.ranks] == ["0", "1"]
    ((_, steps, *times),) = found.steps
    assert (steps, times) == ("8", ["2.00", "2.01", "2.03"])
    assert found.collectives == (("all_reduce", "dp", "backward", "-", "4", "3.00 MiB"),)
    assert sum(part.share for part in found.bar.parts) == pytest.approx(1.0)
    assert found.logs == ()


@pytest.mark.parametrize(
    ("cluster", "name"), [("8xa100-80gb", "on the device"), ("cpu:2", "its process")]
)
def test_what_tells_of_memory_on_the_machine(cluster, name):
    made = study(question(cluster), [ok(2.0, 1, GIB // 8)])
    facts = dict(evidence_of(made, made.probes[0]).facts)
    assert name in facts
    assert any("nvidia-smi" in text for text in facts.values()) == (name == "on the device")


def test_where_memory_ran_out():
    made = study(question(), [oom(phase="optimizer")])
    (probe,) = made.probes
    assert probe.measurement is not None
    found = evidence_of(made, probe)
    facts = dict(found.facts)
    assert not found.ran
    assert facts["ran out in"] == "optimizer, on rank 3"
    assert facts["asked for"] == "3.00 GiB (3,221,225,472 bytes)"
    assert facts["allocated then"] == "75.0 GiB (80,530,636,800 bytes)"
    assert facts["over the limit"] == "by 2.00 GiB at least"
    assert (found.bar, found.logs[0].rank) == (None, 3)
    short = trouble_of(probe, probe.measurement)
    assert "optimizer: rank 3 asked for 3.00 GiB with 75.0 GiB allocated" in short.said
    assert set(short.facts) <= set(found.facts)


def test_losses_of_steps_that_were_not_timed():
    found = replace(crashed(), outcome=Outcome.NON_FINITE, losses=(4.5, float("nan")))
    made = study(question(), [found])
    facts = dict(evidence_of(made, made.probes[0]).facts)
    assert "step" not in facts
    assert facts["loss"] == "4.5000 in the first step, nan in the last"


def test_logs_are_bounded():
    long = "\n".join(f"{n} " + "x" * 1000 for n in range(1000))
    failed = replace(crashed(detail="signal 9"), log_tails=dict.fromkeys(range(100), long))
    made = study(question(), [failed])
    found = evidence_of(made, made.probes[0])
    assert len(found.logs) == MOST_LOGS
    lines = found.logs[0].text.splitlines()
    assert lines[-1].startswith("999 x")
    assert max(map(len, lines)) == LONGEST_LINE
    short = trouble_of(made.probes[0], failed)
    assert (short.outcome, short.said, short.facts) == ("crashed", "signal 9", ())
    assert len(short.logs) == 1
    assert max(map(len, short.logs[0].text.splitlines())) == LONGEST_LINE_IN_SHORT
