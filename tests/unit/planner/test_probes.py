"""One probe as programs read it."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.unit.cost.calibrations import calibration_of
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeState
from tuner.cost.time.compute import layer_backends
from tuner.planner import fits, probe_as_dict
from tuner.planner.probes import attention_text, clocks_text
from tuner.space import enumerate_space

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


def test_the_time_of_a_dry_run_is_predicted_at_measured_rates(lab: SimpleNamespace) -> None:
    question = lab.question(cluster="2xh100-80gb")
    study = lab.study(question)
    cases = (
        {"kind": "copy", "dtype": "fp32", "elements": 1024},
        {"kind": "matrix", "dtype": "fp32", "rows": 8, "width": 8},
        {"kind": "matrix", "dtype": "fp32", "rows": 8, "width": 16},
    )
    measured = replace(study, calibration=calibration_of(cases, question.cluster))
    probe = probe_of(lab)
    probe = replace(probe, request=replace(probe.request, fidelity=Fidelity.PREDICTED))
    usual, found = (probe_as_dict(one, probe)["step_time_s"] for one in (study, measured))
    assert usual["provenance"] == found["provenance"] == "predicted"
    assert usual["value"] != found["value"]


def test_fits_is_of_the_studys_terms(lab: SimpleNamespace) -> None:
    measurement = probe_of(lab).measurement
    assert measurement is not None
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**30), measurement) is True
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**19), measurement) is False
    lost = Measurement(outcome=Outcome.WORKER_LOST)
    assert fits(lab.study(lab.question()), lost) is None
    assert fits(lab.study(lab.question()), lab.oom(2**21, 2**20)) is False


def test_another_kernel_than_the_predicted_one_is_told(lab: SimpleNamespace) -> None:
    study = lab.study(lab.question(cluster="2xh100-80gb"))
    layers = study.question.workload.model.layers
    expected = Counter(map(str, layer_backends(study.question.workload, study.question.cluster)))

    def said(**attention: int) -> str:
        return attention_text(study, Measurement(outcome=Outcome.OK, attention=attention))

    (kernel,) = expected
    assert said(**expected) == f"{kernel} in {layers} layer{'s' * (layers > 1)}"
    other = said(eager=1, flash=layers)
    assert other.startswith("eager in 1 layer, flash in")
    assert other.endswith(f"; predicted was {said(**expected)}")
    assert said() == ""


def test_clocks_in_words() -> None:
    def said(**clocks: object) -> str:
        return clocks_text(Measurement(outcome=Outcome.OK, hardware={"clocks": clocks}))

    whole = {"sm_mhz": 1980.0, "power_w": 411.6, "temperature_c": 61.0, "throttle": []}
    assert said(**whole) == "SM at 1980 MHz, 412 W, 61 °C after the last step"
    slowed = said(sm_mhz=345.0, throttle=["hw_slowdown", "sync_boost"], idle=True)
    assert slowed == (
        "SM at 345 MHz after the last step, when it was idle; slowed by hw_slowdown, sync_boost"
    )
    assert clocks_text(Measurement(outcome=Outcome.OK)) == ""


def test_of_cpu_ranks_the_kernel_is_only_named(lab: SimpleNamespace) -> None:
    study = lab.study(lab.question())
    found = Measurement(outcome=Outcome.OK, attention={"math": 2})
    assert attention_text(study, found) == "math in 2 layers"
