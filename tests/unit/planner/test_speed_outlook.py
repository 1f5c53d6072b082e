from dataclasses import replace

import pytest

from tuner.core.answer import Grounds
from tuner.core.configuration import parse_settings
from tuner.core.measurement import Measurement, Outcome
from tuner.planner.expectation import Expectation
from tuner.planner.knowledge import learned

GIB = 2**30
DDP = "sharding=ddp,micro_batch_size=4"
SHARDED = "sharding=full_shard,micro_batch_size=4"


def outlook_of(study):
    return Expectation(learned(study))


def study_of(lab, factor=1.0):
    """Three probes, of steps that all take ``factor`` times as long."""
    rows = ((DDP, 2.0), (SHARDED, 2.2), (f"{DDP},activation_checkpointing=full", 2.6))
    probes = [
        lab.probe(n, parse_settings(text), lab.ok(factor * seconds, GIB))
        for n, (text, seconds) in enumerate(rows, start=1)
    ]
    return lab.study(probes=probes)


def test_what_was_not_timed_scales_with_what_was(lab):
    other = parse_settings("sharding=shard_grad_op,micro_batch_size=4")
    one, tenfold = (outlook_of(study_of(lab, f)).seconds(other).value for f in (1.0, 10.0))
    assert tenfold == pytest.approx(10 * one, rel=0.2)


def test_effects_are_of_the_answer_itself_else_means_over_pairs_that_differ_in_one_knob(lab):
    study = study_of(lab)
    expectation, best = outlook_of(study), parse_settings(DDP)
    full = replace(best, activation_checkpointing="full")
    ((_, other, change, pairs),) = expectation.effects(best, "activation_checkpointing", ["full"])
    assert (other, pairs) == (full, 1)
    assert change == expectation.change(best, full)
    assert change.low < change.ratio < change.high
    assert change.ratio > 1.05  # computing forward again is predicted, and was measured
    hung = replace(study.probes[2], measurement=Measurement(outcome=Outcome.TIMEOUT, wall_s=90.0))
    expectation = outlook_of(replace(study, probes=(*study.probes[:2], hung)))
    assert not expectation.is_expected_to_fit(full)
    assert not [*expectation.effects(best, "activation_checkpointing", ["full"])]
    expectation = outlook_of(study)
    split = replace(best, tp_size=2, tp_recompute_allgather=True)  # which one rank does not have
    ((_, other, change, pairs),) = expectation.effects(split, "tp_size", [1])
    assert other is None
    assert pairs > 1


def test_grounds_say_whether_rates_are_known(lab):
    assert outlook_of(study_of(lab)).grounds.at_assumed_rates
    known = lab.study(lab.question("8xa100-80gb", 64, heads=8))
    assert outlook_of(known).grounds == Grounds(
        by_rules_of_thumb=False,
        at_assumed_rates=False,
        by_other_fidelities=False,
        by_other_studies=False,
    )
