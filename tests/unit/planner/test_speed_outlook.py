from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.answer import Grounds
from tuner.core.configuration import parse_settings
from tuner.core.quantity import Provenance
from tuner.core.study import Study
from tuner.core.workload import Optimizer, ReduceDtype
from tuner.explain.known import answer
from tuner.planner.knowledge import learn
from tuner.planner.outlook import Outlook
from tuner.space import enumerate_space

GIB = 2**30
DDP = "sharding=ddp,micro_batch_size=4"
SHARDED = "sharding=full_shard,micro_batch_size=4"


def outlook_of(study: Study) -> Outlook:
    return Outlook(learn(study))


def study_of(lab: SimpleNamespace, factor: float = 1.0) -> Study:
    """Three probes, of steps that all take ``factor`` times as long."""
    rows = ((DDP, 2.0), (SHARDED, 2.2), (f"{DDP},activation_checkpointing=full", 2.6))
    probes = [
        lab.probe(n, parse_settings(text), lab.ok(factor * seconds, GIB))
        for n, (text, seconds) in enumerate(rows, start=1)
    ]
    return lab.study(probes=probes)


def test_what_was_timed_is_believed(lab: SimpleNamespace) -> None:
    found = outlook_of(study_of(lab)).seconds(parse_settings(DDP))
    assert found.value == pytest.approx(2.0, rel=0.03)
    assert found.low < found.value < found.high
    assert found.provenance is Provenance.PREDICTED


def test_what_was_not_timed_scales_with_what_was(lab: SimpleNamespace) -> None:
    other = parse_settings("sharding=shard_grad_op,micro_batch_size=4")
    one, tenfold = (outlook_of(study_of(lab, f)).seconds(other).value for f in (1.0, 10.0))
    assert tenfold == pytest.approx(10 * one, rel=0.2)


def test_effects_are_means_over_pairs_that_differ_in_one_knob(lab: SimpleNamespace) -> None:
    study = study_of(lab)
    outlook, best = outlook_of(study), parse_settings(DDP)
    ((_, change, pairs),) = outlook.effects(best, "activation_checkpointing", ["full"])
    assert pairs == 23  # of 46 legal settings, each with and without
    assert change.low < change.ratio < change.high
    assert change.ratio > 1.05  # computing forward again is predicted, and was measured


def test_pairs_of_parallel_sizes_keep_the_global_batch(lab: SimpleNamespace) -> None:
    outlook = outlook_of(study_of(lab))
    ((_, _, pairs),) = outlook.effects(parse_settings(DDP), "tp_size", [2])
    assert pairs == 6  # micro-batches 1, 2, 4, with and without checkpointing


def test_what_does_not_fit_is_in_no_pair(lab: SimpleNamespace) -> None:
    study = study_of(lab)
    full = [s for s in learn(study).space.legal if str(s.activation_checkpointing) == "full"]
    probes = [lab.probe(9 + n, s, lab.oom(5 * GIB, 4 * GIB)) for n, s in enumerate(full)]
    small = lab.study(probes=(*study.probes[:2], *probes))
    outlook = outlook_of(small)
    assert not outlook.is_expected_to_fit(full[0])
    assert not list(outlook.effects(parse_settings(DDP), "activation_checkpointing", ["full"]))


def test_grounds_say_whether_rates_are_known(lab: SimpleNamespace) -> None:
    assert outlook_of(study_of(lab)).grounds.at_assumed_rates
    known = lab.study(lab.question("8xa100-80gb", 64, heads=8))
    assert outlook_of(known).grounds == Grounds(
        by_rules_of_thumb=False,
        at_assumed_rates=False,
        by_other_fidelities=False,
        by_other_studies=False,
    )


# -- other studies ----------------------------------------------------------------------------


def earlier(lab: SimpleNamespace, batch: int, name: str, **more: object) -> Study:
    """Three probes of another question."""
    question = lab.question(batch=batch)
    changed = replace(question, workload=replace(question.workload, **more))
    probes = [
        lab.probe(n, one, lab.ok(1.0, GIB, count=one.gradient_accumulation_steps))
        for n, one in enumerate(enumerate_space(question).legal[:3], start=1)
    ]
    return replace(lab.study(changed, probes=probes), id=name)


def test_other_studies_that_correct_an_answer_are_named(lab: SimpleNamespace) -> None:
    past = (
        earlier(lab, 8, "st-sgd", optimizer=Optimizer.SGD, reduce_dtype=ReduceDtype.BF16),
        earlier(lab, 16, "st-two"),
        earlier(lab, 8192, "st-far"),
    )
    study = replace(study_of(lab), past=past)
    outlook = outlook_of(study)
    assert outlook.grounds.by_other_studies
    assert [one.id for one in outlook.others] == ["st-two", "st-sgd"]
    (named,) = (s for s in answer(study).explanation if s.startswith("Other studies' probes"))
    assert named == (
        "Other studies' probes are those of 2 studies on such devices: st-two (tiny on cpu:2,"
        " global batch 16, sequence 128: 3 settings measured on 2026-01-01 with torch 2.13.0);"
        " st-sgd (tiny on cpu:2, global batch 8, sequence 128, sgd, gradients reduced in bf16: 3"
        " settings measured on 2026-01-01 with torch 2.13.0)."
    )


def test_studies_that_are_too_different_are_not_named(lab: SimpleNamespace) -> None:
    study = replace(study_of(lab), past=(earlier(lab, 8192, "st-far"),))
    assert outlook_of(study).others == ()
    assert "other studies" not in " ".join(answer(study).explanation)
