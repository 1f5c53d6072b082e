"""Emulated studies: planned as measured ones, and labelled for what they are."""

from dataclasses import replace

import pytest

from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Collective, Emulation, Exposed, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import ProbeRequest, StudyState
from tuner.explain.known import answer
from tuner.planner.forecast import Corrections
from tuner.planner.knowledge import learned
from tuner.planner.ranking import indistinguishable
from tuner.planner.timing import step_time

DDP = Settings(micro_batch_size=4)
FULL = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
HALF = replace(FULL, micro_batch_size=2, gradient_accumulation_steps=2)
EXPOSED = Exposed(value_s=0.4, low_s=0.2, high_s=0.8)


def emulated(found, exposed=EXPOSED, **more):
    """The measurement of a probe whose steps wait for communication."""
    if found.outcome is not Outcome.OK:
        return found
    times = found.step_times_s
    emulation = Emulation(
        compute_s={n: tuple(s - exposed.value_s for s in steps) for n, steps in times.items()},
        exposed_s=dict.fromkeys(times, exposed),
        collectives={
            n: (Collective(op="all_gather", axis="dp_shard", phase="forward", count=1, bytes=9),)
            for n in times
        },
        **more,
    )
    made = replace(found, emulation=emulation)
    assert Measurement.from_dict(made.as_dict()) == made
    return made


def of(lab, number, settings, found, fidelity=Fidelity.EMULATED):
    probe = lab.probe(number, settings, found)
    return replace(probe, request=ProbeRequest(settings=settings, fidelity=fidelity))


def study_of(lab, *probes, **limits):
    return lab.study(probes=probes, **{"fidelity": Fidelity.EMULATED, **limits})


def test_a_whole_study_is_labelled_emulated(lab):
    class Alone(lab.Machine):
        def run(self, request, limit):
            assert request.fidelity is Fidelity.EMULATED
            tiny = Exposed(value_s=1e-3, low_s=1e-3, high_s=1e-3)
            return emulated(super().run(request, limit), tiny)

    study, _ = Alone(lab.question()).play(study_of(lab, max_probes=14))
    found = answer(replace(study, state=StudyState.DONE))
    assert found.provenance == "emulated"
    assert found.probes == {"ok": len(study.probes)}
    assert len(study.probes) > 5
    best = found.best
    quantities = (best.allocated_gib, best.reserved_gib, best.device_gib, best.step_time_s)
    assert {q.provenance for q in quantities} == {Provenance.EMULATED}


def test_the_model_widens_the_interval_and_tells_no_settings_apart(lab):
    steps = [1.0, 1.01, 1.02, 1.03, 1.04]
    found = emulated(lab.ok({1: steps}, 2**30))
    narrow, wide = (step_time([found], 1, with_model=on) for on in (False, True))
    assert wide.value == narrow.value == 1.02
    assert wide.low == pytest.approx(narrow.low - 0.2)
    assert wide.high == pytest.approx(narrow.high + 0.4)
    slower = emulated(lab.ok({1: [1.2 * s for s in steps]}, 2**30))
    known = learned(study_of(lab, of(lab, 1, DDP, found), of(lab, 2, FULL, slower)))
    assert not indistinguishable(known.findings[DDP], known.findings[FULL], 0.01)


def test_a_device_that_stands_in_says_nothing_of_time(lab):
    found = emulated(lab.ok(1.0, 2**30), stands_in=True)
    best = answer(study_of(lab, of(lab, 1, DDP, found))).best
    assert best.step_time_s.provenance is Provenance.PREDICTED
    assert best.allocated_gib.provenance is Provenance.EMULATED
    assert best.provenance == "predicted"


def seconds(lab, probes, settings):
    predicted = {DDP: 1.0, FULL: 2.0, HALF: 3.0}
    found = Corrections(study_of(lab, *probes), predicted)
    return found.factors.get(settings.layout, found.typical) * predicted[settings]


def test_what_was_seen_corrects_the_prediction_of_settings_like_it(lab):
    one = of(lab, 1, FULL, emulated(lab.ok(3.0, 2**30)))
    assert seconds(lab, [one], FULL) == pytest.approx(3.0)
    assert seconds(lab, [one], HALF) == pytest.approx(4.5)  # of the same class
    assert seconds(lab, [one], DDP) == pytest.approx(1.5)  # by what is typical
    other = of(lab, 2, DDP, emulated(lab.ok(0.9, 2**30)))
    assert seconds(lab, [one, other], DDP) == pytest.approx(0.9)
    assert seconds(lab, [], DDP) == 1.0


def test_what_was_measured_replaces_what_was_emulated(lab):
    one = of(lab, 1, FULL, emulated(lab.ok(3.0, 2**30)))
    two = of(lab, 2, FULL, lab.ok(2.2, 2**30), Fidelity.MEASURED)
    assert seconds(lab, [one, two], FULL) == pytest.approx(2.2)
    assert seconds(lab, [two, one], FULL) == pytest.approx(2.2)
    stand_in = of(lab, 1, FULL, emulated(lab.ok(3.0, 2**30), stands_in=True))
    assert seconds(lab, [stand_in], FULL) == 2.0


def test_what_ran_out_of_memory_is_no_answer_whatever_is_predicted(lab):
    limit = 4096 * lab.MIB
    oom = of(lab, 1, HALF, lab.oom(2 * limit, limit))
    larger = replace(HALF, micro_batch_size=1, gradient_accumulation_steps=4)
    found = Corrections(study_of(lab, oom), {})
    assert "did not fit" in found.why_not(HALF)
    assert found.why_not(larger) == ""
    assert found.why_not(DDP) == ""
    fits = of(lab, 2, HALF, lab.ok(1.0, 2**30, count=2), Fidelity.MEASURED)
    assert Corrections(study_of(lab, oom, fits), {}).why_not(HALF) == ""
