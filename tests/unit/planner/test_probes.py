"""One probe as programs read it, at today's rates."""

from dataclasses import replace

from tests.unit.cost.calibrations import calibration_of
from tests.unit.cost.test_emulated import CASES, GATHER
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Emulation, Fidelity, Measurement, Outcome
from tuner.core.study import ProbeRequest, ProbeState
from tuner.core.workload import Precision
from tuner.cost.time.emulated import priced, rates_of
from tuner.explain.known import answer
from tuner.planner import fits, probe_as_dict
from tuner.planner.knowledge import learned
from tuner.planner.probes import at_todays_rates, repriced
from tuner.results.points import rows_of
from tuner.space import enumerate_space

RAW = {*["number", "settings", "fidelity", "repetition", "accumulation_counts", "state"]}
RAW |= {"memory_limit_bytes", "finished_at", "measurement"}
DERIVED = {"outcome", "fits", "step_time_s", "tokens_per_s_per_gpu"}


def probe_of(lab, **changes):
    first = enumerate_space(lab.question()).legal[0]
    count = first.gradient_accumulation_steps
    return replace(lab.probe(1, first, lab.ok(2.0, 2**20, count=count)), **changes)


def test_a_probe_that_is_done(lab):
    found = probe_as_dict(lab.study(lab.question()), probe_of(lab))
    assert set(found) == RAW | DERIVED
    assert found["outcome"] == "ok"
    assert found["fits"] is True
    assert found["step_time_s"]["provenance"] == "measured"
    assert found["tokens_per_s_per_gpu"]["value"] > 0


def test_a_probe_that_waits_has_nothing_derived(lab):
    waiting = probe_of(lab, state=ProbeState.QUEUED, measurement=None)
    found = probe_as_dict(lab.study(lab.question()), waiting)
    assert set(found) == RAW
    assert found["measurement"] is None


def test_the_time_of_a_dry_run_is_predicted_at_measured_rates(lab):
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


def test_fits_is_of_the_studys_terms(lab):
    measurement = probe_of(lab).measurement
    assert measurement is not None
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**30), measurement) is True
    assert fits(lab.study(lab.question(), memory_limit_bytes=2**19), measurement) is False
    lost = Measurement(outcome=Outcome.WORKER_LOST)
    assert fits(lab.study(lab.question()), lost) is None
    assert fits(lab.study(lab.question()), lab.oom(2**21, 2**20)) is False


FULL = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
HALF = replace(FULL, micro_batch_size=2, gradient_accumulation_steps=2)
CPUS = parse_cluster("cpu:2")
CALIBRATION = calibration_of(CASES, CPUS)
LATER = replace(
    CALIBRATION,
    at="2026-12-01T10:00:00+00:00",
    links={
        name: replace(rates, bytes_per_s=rates.bytes_per_s.scaled(0.001))
        for name, rates in CALIBRATION.links.items()
    },
)


def alone(lab, settings, seconds):
    """Steps that compute so long, and have no price."""
    count = settings.gradient_accumulation_steps
    emulation = Emulation(
        compute_s={count: (seconds,) * 10},
        exposed_s={},
        collectives={count: (GATHER,)},
        phases_s={count: {"forward": seconds / 3, "backward": seconds / 2}},
        unpriced="unknown links",
    )
    return replace(lab.ok(seconds, 2**30), step_times_s={}, emulation=emulation)


def of(lab, number, settings, seconds, calibration):
    """A probe that was priced when there was this calibration."""
    found = alone(lab, settings, seconds)
    if calibration is not None:
        found = priced(found, settings, rates_of(calibration, Precision.FP32, CPUS))
    probe = lab.probe(number, settings, found)
    return replace(probe, request=ProbeRequest(settings=settings, fidelity=Fidelity.EMULATED))


def study_of(lab, *probes, calibration):
    study = lab.study(probes=probes, fidelity=Fidelity.EMULATED)
    return replace(study, calibration=calibration)


def test_a_slower_probe_does_not_win_by_older_rates(lab):
    """Both would send the same, and links were found to be a thousand times as slow."""
    before, after = of(lab, 1, FULL, 1.2, CALIBRATION), of(lab, 2, HALF, 1.0, LATER)
    taken = [max(probe.measurement.step_times_s.values()) for probe in (before, after)]
    assert taken[0] < taken[1]
    study = study_of(lab, before, after, calibration=LATER)
    best = answer(study).best
    assert best.settings == HALF
    same = study_of(lab, of(lab, 1, FULL, 1.2, LATER), after, calibration=LATER)
    assert repriced(study) == same
    assert learned(study).findings == learned(same).findings
    assert rows_of(study) == rows_of(same)
    assert probe_as_dict(study, before) == probe_as_dict(study, same.probes[0])


def test_a_probe_without_a_price_gets_one_when_links_were_measured(lab):
    probe = of(lab, 1, FULL, 1.0, None)
    assert answer(study_of(lab, probe, calibration=None)).best is None
    best = answer(study_of(lab, probe, calibration=CALIBRATION)).best
    assert best.step_time_s.value > 1.0


def test_a_price_that_cannot_be_made_anew_is_kept(lab):
    """The calibration is gone, and no catalogue has the links of CPU ranks."""
    probe = of(lab, 1, FULL, 1.0, CALIBRATION)
    study = study_of(lab, probe, calibration=None)
    assert study.question.cluster.intra_node == Link()
    assert repriced(study) is study
    assert probe.measurement.emulation is not None
    earlier = replace(probe.measurement.emulation, phases_s={})
    old = replace(probe, measurement=replace(probe.measurement, emulation=earlier))
    assert at_todays_rates(study_of(lab, old, calibration=LATER), old) is old.measurement
