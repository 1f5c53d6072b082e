"""What probes saw outside the allocator is what predictions of that machine count with."""

from dataclasses import replace

import pytest

from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Fidelity
from tuner.cost.constants import default_costs
from tuner.planner.forecast import forecast
from tuner.planner.knowledge import overheads

MIB = 2**20
FULL = Settings(sharding=Sharding.FULL_SHARD, gradient_accumulation_steps=8)
HALVES = replace(FULL, tp_size=2, tp_recompute_allgather=True, gradient_accumulation_steps=16)
"""Communicators of the world, of data parallelism and of tensor parallelism: 3, not 1."""


@pytest.fixture
def question(lab):
    return lab.question("8xa100-80gb", 64)


def seen(lab, number, settings, overhead_mib):
    count = settings.gradient_accumulation_steps
    found = lab.ok(1.0, MIB, count=count, overhead=overhead_mib * MIB)
    return lab.probe(number, settings, found)


def study_of(lab, question, *probes, **limits):
    found = lab.study(question, **{"memory_limit_bytes": None, **limits})
    return replace(found, probes=probes)


def test_settings_of_as_many_communicators_have_what_the_worst_of_them_had(lab, question):
    larger = replace(FULL, micro_batch_size=2, gradient_accumulation_steps=4)
    study = study_of(lab, question, seen(lab, 1, FULL, 2000), seen(lab, 2, larger, 2100))
    assert overheads(study).of(replace(FULL, micro_batch_size=8)) == 2100 * MIB


def test_others_differ_by_communicators(lab, question):
    one = overheads(study_of(lab, question, seen(lab, 1, FULL, 2000)))
    each = default_costs().device.communicator_bytes.value
    assert one.of(HALVES) == 2000 * MIB + int(2 * each)
    both = study_of(lab, question, seen(lab, 1, FULL, 2000), seen(lab, 2, HALVES, 2600))
    assert overheads(both).of(HALVES) == 2600 * MIB
    four = replace(HALVES, sharding=Sharding.HYBRID_SHARD)
    on_nodes = replace(both, question=lab.question("2x4xa100-80gb", 64))
    assert overheads(on_nodes).of(four) == 2900 * MIB  # 4 of them, and 300 MiB each


def test_a_study_without_probes_has_what_its_past_saw_on_that_cluster(lab, question):
    past = study_of(lab, question, seen(lab, 1, FULL, 1700))
    study = replace(study_of(lab, question), past=(past,))
    assert overheads(study).of(FULL) == 1700 * MIB
    elsewhere = replace(past, question=lab.question("4xa100-80gb", 64))
    assert overheads(replace(study, past=(elsewhere,))).of(FULL) is None


def test_it_decides_what_fits(lab, question):
    """Settings that fit with the catalogue's sizes do not with those seen; and back again."""
    plain = study_of(lab, question, fidelity=Fidelity.PREDICTED)
    needed = forecast(plain).estimates[FULL].expected_bytes
    tight = study_of(
        lab, question, fidelity=Fidelity.PREDICTED, memory_limit_bytes=needed + 100 * MIB
    )
    assert forecast(tight).estimates[FULL].fits
    found = forecast(replace(tight, probes=(seen(lab, 1, HALVES, 9000),))).estimates[FULL]
    assert not found.fits
    assert found.why.startswith("needs ")
    less = study_of(
        lab, question, fidelity=Fidelity.PREDICTED, memory_limit_bytes=needed - 100 * MIB
    )
    assert not forecast(less).estimates[FULL].fits
    found = forecast(replace(less, probes=(seen(lab, 1, FULL, 600),))).estimates[FULL]
    assert found.fits
    assert "needs" not in found.why
