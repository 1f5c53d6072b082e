"""One probe as programs read it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tuner.measurement import Measurement, Outcome
from tuner.planner import fits, probe_as_dict
from tuner.space import enumerate_space
from tuner.study import Probe, ProbeState

RAW = {
    "id",
    "settings",
    "fidelity",
    "repetition",
    "accumulation_counts",
    "state",
    "memory_limit_bytes",
    "finished_at",
    "measurement",
}
DERIVED = {"outcome", "fits", "step_time_s", "tokens_per_s_per_gpu"}


def probe_of(lab: SimpleNamespace, **changes: Any) -> Probe:
    first = enumerate_space(lab.question()).legal[0]
    count = first.gradient_accumulation_steps
    return replace(lab.probe(1, first, lab.ok(2.0, 2**20, count=count)), **changes)


def test_a_probe_that_is_done(lab: SimpleNamespace) -> None:
    found = probe_as_dict(lab.study(lab.question()), probe_of(lab))
    assert set(found) == RAW | DERIVED
    assert found["outcome"] == "ok"
    assert found["fits"] is True
    assert found["step_time_s"]["provenance"] == "measured"
    assert found["tokens_per_s_per_gpu"]["value"] > 0


def test_a_probe_that_waits_has_nothing_derived(lab: SimpleNamespace) -> None:
    waiting = probe_of(lab, state=ProbeState.QUEUED, measurement=None)
    found = probe_as_dict(lab.study(lab.question()), waiting)
    assert set(found) == RAW
    assert found["measurement"] is None


def test_fits_is_of_the_studys_terms(lab: SimpleNamespace) -> None:
    measurement = probe_of(lab).measurement
    assert measurement is not None
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**30), measurement) is True
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**19), measurement) is False
    lost = Measurement(outcome=Outcome.WORKER_LOST)
    assert fits(lab.study(lab.question()), lost) is None
    assert fits(lab.study(lab.question()), lab.oom(2**21, 2**20)) is False
