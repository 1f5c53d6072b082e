"""Which knob a failure is put down to, and which other settings it speaks against."""

from dataclasses import replace

from tests.questions import question_about
from tests.records import VERSIONS
from tests.unit import made
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.measurement import Measurement, Outcome
from tuner.core.workload import Precision
from tuner.guard.faults import Faults, bears_on, blamed_by_counts, checks_of, path_of
from tuner.guard.replica import family_of

ACC = "gradient_accumulation_steps=3"


def question(model="llama-3.1-8b", stack="torch"):
    known = framework(stack, VERSIONS if stack == "torch" else {}, VERSIONS)
    return question_about(model, "8xh100-80gb", known, tokens=128, batch=64)


def verdict(text, **more):
    """Of ranks that tell their own build of torch."""
    return made.verdict(text, **{"versions": {**VERSIONS, "torch": "2.13.0+cpu"}, **more})


def faults(*verdicts):
    return Faults(checks_of(question(), verdicts))


def on(found, text, ranks=8):
    return found.wrong(path_of(parse_settings(text), ranks))


def sync(sharding, value="true", **more):
    text = f"sharding={sharding},{ACC},sync_each_batch={value}"
    return verdict(text, **{"knob": "sync_each_batch" if more.get("wrong") else "", **more})


def test_steps_that_were_miscounted_are_put_down_to_synchronization():
    found = Measurement(
        outcome=Outcome.WRONG_RESULT, optimizer_steps=18, expected_optimizer_steps=6
    )
    assert blamed_by_counts(parse_settings(f"sharding=ddp,{ACC}"), 2, found) == "sync_each_batch"
    assert blamed_by_counts(parse_settings("sharding=ddp"), 2, found) == ""  # nothing to put off
    assert blamed_by_counts(parse_settings(ACC), 1, found) == "sync_each_batch"  # it is told it


def test_losses_blame_the_knob_in_which_alone_a_good_replica_differs():
    tensor = "tp_size=2,tp_recompute_allgather"
    found = faults(
        verdict(f"{tensor}=false", wrong=True), verdict(f"{tensor}=true"), verdict("sharding=ddp")
    )
    wrong = on(found, f"sharding=full_shard,{tensor}=false,micro_batch_size=4")
    assert wrong.why.startswith("tp_recompute_allgather=false trains something else")
    assert on(found, f"sharding=full_shard,{tensor}=true,micro_batch_size=4") is None
    assert on(found, "sharding=full_shard,micro_batch_size=4") is None
    assert on(found, "sharding=full_shard,tp_size=4,tp_recompute_allgather=false") is not None


def test_losses_of_another_model_or_number_format_are_no_neighbours():
    tensor = "tp_size=2,tp_recompute_allgather"
    failed = verdict(f"{tensor}=false", wrong=True)
    for other in ({"family": "a third"}, {"precision": "bf16"}):
        found = faults(failed, verdict(f"{tensor}=true", **other))
        assert on(found, f"sharding=full_shard,{tensor}=false") is None
        same = on(found, f"{tensor}=false", ranks=2)
        assert same.why.startswith("such settings ended as wrong result: rank 0: the optimizer")


def test_one_failure_speaks_against_the_value_everywhere_until_another_layout_is_seen():
    found = faults(sync("ddp", wrong=True))
    here, there = on(found, f"sharding=ddp,{ACC}"), on(found, f"sharding=full_shard,{ACC}")
    assert (here.is_unconfirmed, there.is_unconfirmed) == (False, True)
    assert "with sharding=ddp" in there.why
    assert on(found, f"sharding=ddp,{ACC},sync_each_batch=false") is None
    assert on(found, "sharding=ddp,micro_batch_size=4") is None  # the knob does not act


def test_the_own_models_replica_says_more_than_anothers():
    own = family_of(question())
    for sharding in ("ddp", "full_shard"):
        failed = [sync("ddp", wrong=True), sync("full_shard", wrong=True)]
        found = faults(*failed, sync(sharding, family=own))
        assert on(found, f"sharding={sharding},{ACC}") is None
    found = faults(sync("ddp"), sync("ddp", wrong=True, family=own))
    assert on(found, f"sharding=ddp,{ACC}") is not None


def test_no_replica_clears_what_a_probe_has_counted():
    """It was seen on the devices themselves, and what a probe counts is no model's own."""
    for blamed in ["sync_each_batch", ""]:
        probe = sync("ddp", wrong=True, study="st-1", family="")
        probe = replace(probe, knob=blamed, precision="")
        own = sync("ddp", family=family_of(question()))
        assert on(faults(own), f"sharding=ddp,{ACC}") is None
        found = on(faults(probe, own), f"sharding=ddp,{ACC}")
        assert not found.is_unconfirmed


def test_a_path_is_checked_when_each_of_its_values_passed_there():
    text = f"sharding=full_shard,{ACC},activation_checkpointing=full"
    path = path_of(parse_settings(text), 8)
    full = verdict("sharding=full_shard,activation_checkpointing=full")
    assert not faults(full).is_checked(path)
    assert faults(full, sync("full_shard")).is_checked(path)
    assert not faults(full, sync("ddp")).is_checked(path)
    assert not faults(full, sync("full_shard", study="st-1", family="")).is_checked(path)


def test_what_ran_otherwise_does_not_count():
    for other in [
        {"versions": {**VERSIONS, "accelerate": "1.14.0"}},
        {"versions": {"torch": "2.13.0"}},
        {"program": "a script"},
        {"precision": "bf16_mixed"},
        {"settings": {}},
    ]:
        failed = replace(sync("ddp", wrong=True), **other)
        assert not bears_on(question(), failed)
        assert on(faults(failed), f"sharding=ddp,{ACC}") is None


def test_the_same_release_of_another_build_counts():
    assert bears_on(question(), sync("ddp"))
    assert bears_on(question(stack="accelerate"), sync("ddp"))
    assert not bears_on(question(stack="nanotron"), sync("ddp"))
    own = replace(question().workload, precision=Precision.BF16_MIXED)
    mixed = replace(sync("ddp"), precision="bf16_mixed")
    assert bears_on(replace(question(), workload=own), mixed)
