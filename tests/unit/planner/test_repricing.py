"""Emulated probes of before a calibration, and after it, are compared at the same rates."""

from dataclasses import replace
from types import SimpleNamespace

from tests.unit.cost.calibrations import calibration_of
from tests.unit.cost.test_emulated import CASES, GATHER
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Emulation, Fidelity, Measurement
from tuner.core.study import Probe, ProbeRequest, Study
from tuner.core.workload import Precision
from tuner.cost.calibration import Calibration
from tuner.cost.time.emulated import priced, rates_of
from tuner.explain.known import answer
from tuner.planner import probe_as_dict
from tuner.planner.knowledge import learn
from tuner.planner.probes import at_todays_rates, repriced
from tuner.results.points import rows_of

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


def alone(lab: SimpleNamespace, settings: Settings, seconds: float) -> Measurement:
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


def of(
    lab: SimpleNamespace,
    number: int,
    settings: Settings,
    seconds: float,
    calibration: Calibration | None,
) -> Probe:
    """A probe that was priced when there was this calibration."""
    found = alone(lab, settings, seconds)
    if calibration is not None:
        found = priced(found, settings, rates_of(calibration, Precision.FP32, CPUS))
    probe = lab.probe(number, settings, found)
    return replace(probe, request=ProbeRequest(settings=settings, fidelity=Fidelity.EMULATED))


def study_of(lab: SimpleNamespace, *probes: Probe, calibration: Calibration | None) -> Study:
    study = lab.study(probes=probes, fidelity=Fidelity.EMULATED)
    return replace(study, calibration=calibration)


def test_a_slower_probe_does_not_win_by_older_rates(lab: SimpleNamespace) -> None:
    """Both would send the same, and links were found to be a thousand times as slow."""
    before, after = of(lab, 1, FULL, 1.2, CALIBRATION), of(lab, 2, HALF, 1.0, LATER)
    taken = [max(probe.measurement.step_times_s.values()) for probe in (before, after)]
    assert taken[0] < taken[1]
    study = study_of(lab, before, after, calibration=LATER)
    best = answer(study).best
    assert best is not None
    assert best.settings == HALF
    same = study_of(lab, of(lab, 1, FULL, 1.2, LATER), after, calibration=LATER)
    assert repriced(study) == same
    assert learn(study).findings == learn(same).findings
    assert rows_of(study) == rows_of(same)
    assert probe_as_dict(study, before) == probe_as_dict(study, same.probes[0])


def test_a_probe_without_a_price_gets_one_when_links_were_measured(lab: SimpleNamespace) -> None:
    probe = of(lab, 1, FULL, 1.0, None)
    assert answer(study_of(lab, probe, calibration=None)).best is None
    best = answer(study_of(lab, probe, calibration=CALIBRATION)).best
    assert best is not None
    assert best.step_time_s.value is not None
    assert best.step_time_s.value > 1.0


def test_what_has_todays_price_is_left_alone(lab: SimpleNamespace) -> None:
    study = study_of(lab, of(lab, 1, FULL, 1.0, LATER), calibration=LATER)
    assert repriced(study) is study


def test_a_price_that_cannot_be_made_anew_is_kept(lab: SimpleNamespace) -> None:
    """The calibration is gone, and no catalogue has the links of CPU ranks."""
    probe = of(lab, 1, FULL, 1.0, CALIBRATION)
    study = study_of(lab, probe, calibration=None)
    assert study.question.cluster.intra_node == Link()
    assert repriced(study) is study
    assert probe.measurement is not None
    assert probe.measurement.emulation is not None
    earlier = replace(probe.measurement.emulation, phases_s={})
    old = replace(probe, measurement=replace(probe.measurement, emulation=earlier))
    assert at_todays_rates(study_of(lab, old, calibration=LATER), old) is old.measurement
