from dataclasses import replace

import pytest

from tuner.core.configuration import parse_settings
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.space import check_settings, enumerate_space, settings_notes


def test_accumulation_is_derived(ask):
    settings = parse_settings("sharding=full_shard,micro_batch_size=2")
    checked = check_settings(ask(), settings)
    assert checked.gradient_accumulation_steps == 4
    assert checked in enumerate_space(ask()).legal
    assert settings_notes(ask(), settings, given=("sharding", "micro_batch_size")) == ()


def test_broken_rules_are_named(ask):
    for text, field, words in [
        ("micro_batch_size=8,pp_size=2", "pp_size", "cannot be had here: pipeline"),
        (
            "micro_batch_size=2,gradient_accumulation_steps=3",
            "gradient_accumulation_steps",
            "must be 4: global batch 64 = micro batch 2 x accumulation x data-parallel size 8",
        ),
        ("micro_batch_size=3", "micro_batch_size", "must divide 8 = global batch 64"),
        ("tp_size=3", "tp_size", "must divide heads (32)"),
        ("tp_size=16", "tp_size", "gpus_per_node (8)"),
        ("tp_size=2", "sharding", "DistributedDataParallel takes no DTensor"),
        ("cpu_offload=true", "cpu_offload", "needs a sharding of shard_grad_op"),
        ("sharding=hybrid_shard", "sharding", "more than one node"),
        ("sharding=zero1", "sharding", "torch has"),
    ]:
        with pytest.raises(UsageError) as caught:
            check_settings(ask(), parse_settings(text))
        assert caught.value.field == field
        assert words in caught.value.allowed


def test_optimizers_that_step_no_dtensors_are_refused_where_there_are_some(ask):
    plain = {Optimizer.ADAMW, Optimizer.ADAMW_FUSED, Optimizer.ADAMW_8BIT, Optimizer.SGD}
    of_bitsandbytes = {Optimizer.ADAMW_BNB_8BIT, Optimizer.PAGED_ADAMW_8BIT, Optimizer.LION}
    by_fsdp1 = {"accelerate": "1.5.0", "torch": "2.9.0"}
    for optimizer in Optimizer:
        question, of_fsdp1 = (
            replace(one, workload=replace(one.workload, optimizer=optimizer))
            for one in (ask(), ask(name="accelerate", versions=by_fsdp1))
        )
        legal = enumerate_space(question).legal
        assert all(s.sharding == "ddp" and s.tp_size == 1 for s in legal) is (
            optimizer not in plain
        )
        for text, field in (("sharding=full_shard", "sharding"), ("tp_size=8", "tp_size")):
            if optimizer in plain:
                check_settings(question, parse_settings(text))
                continue
            with pytest.raises(UsageError, match=f"with optimizer {optimizer}: ") as caught:
                check_settings(question, parse_settings(text))
            assert caught.value.field == field
        shards = {s.sharding for s in enumerate_space(of_fsdp1).legal} > {"ddp"}
        assert shards is (optimizer in plain | of_bitsandbytes)  # flat shards are plain tensors


def test_muon_is_where_torch_has_it_and_not_the_trainer_s(ask):
    for name, versions, why in (
        ("torch", {"torch": "2.9.0"}, ""),
        ("torch", {"torch": "2.8.0"}, "needs torch 2.9 or newer"),
        ("trainer", {}, "none of the Trainer's optimizers"),
    ):
        question = ask(name=name, versions=versions)
        muon = replace(question.workload, optimizer=Optimizer.MUON)
        if not why:
            replace(question, workload=muon)
            continue
        with pytest.raises(UsageError, match=why):
            replace(question, workload=muon)


def test_hybrid_shard_needs_ranks_to_shard_over_in_each_node(ask):
    """PyTorch's mesh has no axis for one shard rank, so there is nothing to wrap the model in."""
    for cluster, tp_size in [("2x4xh100-80gb", 4), ("8x1xh100-80gb", 1)]:
        question = ask(cluster)
        text = f"sharding=hybrid_shard,tp_size={tp_size},micro_batch_size=1"
        with pytest.raises(UsageError, match="more than one data-parallel rank in a node"):
            check_settings(question, parse_settings(text))
        asked = [s for s in enumerate_space(question).legal if s.sharding == "hybrid_shard"]
        assert all(s.tp_size < tp_size for s in asked)


def test_a_batch_that_these_settings_cannot_make(ask):
    with pytest.raises(UsageError, match="global_batch_size: got 12; must be a multiple"):
        check_settings(ask(batch=12), parse_settings("micro_batch_size=1"))


def test_restrictions_hold_where_the_knob_is_live(ask):
    question = ask(sync_each_batch=(False,), sharding=("full_shard",))
    with pytest.raises(UsageError, match="sharding: got 'ddp'; is restricted to full_shard"):
        check_settings(question, parse_settings("micro_batch_size=1,sync_each_batch=false"))
    with pytest.raises(UsageError, match="sync_each_batch: got 'true'; is restricted to false"):
        check_settings(question, parse_settings("sharding=full_shard,micro_batch_size=1"))
    checked = check_settings(question, parse_settings("sharding=full_shard,micro_batch_size=8"))
    assert checked.sync_each_batch


def test_what_a_version_does_wrong_is_refused(ask):
    old = ask(name="accelerate", versions={"accelerate": "0.30"})
    settings = parse_settings("sharding=full_shard,micro_batch_size=2")
    with pytest.raises(UsageError, match=r"got 'true'; accelerate 0\.28 to 0\.30"):
        check_settings(old, settings, given=("sync_each_batch",))


def test_a_knob_left_out_has_the_value_that_is_not_refused(ask):
    old = ask(name="accelerate", versions={"accelerate": "0.30"})
    settings = parse_settings("sharding=full_shard,micro_batch_size=2")
    assert not check_settings(old, settings, given=("sharding",)).sync_each_batch
    (note,) = settings_notes(old, settings, given=("sharding",))
    assert note.why.startswith("sync_each_batch is false: accelerate 0.28 to 0.30 takes")
    at_once = parse_settings("sharding=full_shard,micro_batch_size=8")
    assert check_settings(old, at_once).sync_each_batch
