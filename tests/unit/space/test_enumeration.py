import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.core.configuration import KNOBS, Checkpointing, Settings, Sharding, parse_settings
from tuner.core.study import Question
from tuner.core.workload import Precision, ReduceDtype, TensorParallel
from tuner.errors import UsageError
from tuner.space import check_settings, count_settings, enumerate_space

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 4096}


def values(space, knob):
    return {getattr(one, knob) for one in space.legal}


def why(space, knob):
    return " | ".join(inactive.why for inactive in space.dead_knobs if inactive.knob == knob)


def naive(question):
    """All settings of a torch question, from the written rules, one combination at a time."""
    world, node = question.cluster.world_size, question.cluster.gpus_per_node
    batch, found = question.workload.global_batch_size, set()
    shardings = [s for s in Sharding if s is not Sharding.ZERO1]
    for tp, sharding, recompute, sync, defer, checkpointing, micro in product(
        range(1, node + 1), shardings, (False, True), (False, True), (False, True), Checkpointing,
        range(1, batch + 1),
    ):  # fmt: skip
        if any(n % tp for n in (node, 32, 8, 11008, 2048)) or batch % (world // tp):
            continue
        ranks = world // tp
        if (batch // ranks) % micro:
            continue
        count = batch // ranks // micro
        hybrid = question.cluster.nodes > 1 and node // tp > 1
        if sharding is Sharding.HYBRID_SHARD and not hybrid and ranks > 1:
            continue
        if sharding is Sharding.DDP and tp > 1 and ranks > 1:
            continue
        if checkpointing is Checkpointing.SELECTIVE and tp > 1:
            continue
        if checkpointing is Checkpointing.OFFLOAD:  # only where asked for
            continue
        found.add(
            Settings(
                sharding=sharding if ranks > 1 else Sharding.DDP,
                tp_size=tp,
                tp_recompute_allgather=recompute and tp > 1,
                micro_batch_size=micro,
                gradient_accumulation_steps=count,
                sync_each_batch=sync or count == 1 or ranks == 1,
                defer_all_reduce=defer
                and sync
                and count > 1
                and ranks > 1
                and sharding is Sharding.HYBRID_SHARD,
                activation_checkpointing=checkpointing,
            )
        )
    return found


def test_the_space_is_what_the_rules_say(ask):
    for cluster in ["1xa100-80gb", "8xa100-80gb", "2x4xh100-80gb", "cpu:2"]:
        for batch in [8, 24]:
            question = ask(cluster, batch)
            legal = enumerate_space(question).legal
            assert len(set(legal)) == len(legal)
            assert set(legal) == naive(question)


def test_a_fused_loss_is_looked_at_where_it_is_asked_for_and_can_be_had(ask):
    both = {"fused_loss": (False, True)}
    plain, asked = (enumerate_space(ask("8xa100-80gb", 8, **k)) for k in ({}, both))
    fused = {one for one in asked.legal if one.fused_loss}
    assert set(asked.legal) - fused == set(plain.legal)
    assert fused == {replace(one, fused_loss=True) for one in plain.legal if one.tp_size == 1}
    ours, old = {"name": "accelerate", "fused_loss": (True,)}, {"transformers": "4.48.3"}
    newer = ask("8xa100-80gb", 8, versions={"transformers": "4.49"}, **ours)
    assert any(one.fused_loss for one in enumerate_space(newer).legal)
    with pytest.raises(UsageError, match="or newer it can"):
        enumerate_space(ask("8xa100-80gb", 8, versions=old, **ours))


def test_a_fused_loss_is_searched_where_logits_are_large(ask):
    """47 GiB for one sequence of 32,768 tokens; what rules it out is told there."""
    vocabulary = {"vocab_size": 128256, "max_position_embeddings": 32768}
    liger = {"liger-kernel": "0.8.5"}
    for cluster, tokens, stack, searched, told in [
        ("8xh100-80gb", 32768, {}, True, ""),
        ("8xh100-80gb", 8192, {}, True, ""),
        ("8xh100-80gb", 4096, {}, False, ""),
        ("8xl4", 4096, {}, True, ""),
        ("cpu:2", 32768, {}, False, ""),
        ("8xh100-80gb", 32768, {"name": "trainer", "versions": liger}, True, ""),
        ("8xh100-80gb", 32768, {"name": "trainer"}, False, "liger-kernel is neither installed"),
    ]:
        space = enumerate_space(ask(cluster, 8, config=vocabulary, sequence_length=tokens, **stack))
        assert values(space, "fused_loss") == ({False, True} if searched else {False})
        why = [one.why for one in space.dead_knobs if one.knob == "fused_loss"]
        assert any(told in one for one in why) == bool(told)


def test_the_trainer_fuses_its_loss_by_ligers_kernels_where_it_has_them(ask):
    liger = {"name": "trainer", "fused_loss": (True,)}
    new = {"liger-kernel": "0.8.5", "transformers": "5.23.0"}
    found = enumerate_space(ask("8xa100-80gb", 8, versions=new, **liger))
    assert all(one.fused_loss == (one.tp_size == 1) for one in found.legal)
    for cluster, model, versions, why in [
        ("8xa100-80gb", {}, {}, "--framework-version liger-kernel="),
        ("8xa100-80gb", {"only": GPT2}, new, "none for gpt2"),
        ("8xa100-80gb", {}, new | {"liger-kernel": "0.6.5"}, "0.7 or newer"),
        ("8xa100-80gb", {}, new | {"transformers": "4.52.4"}, "cannot be told which"),
        ("cpu:2", {}, new, "GPUs only"),
    ]:
        with pytest.raises(UsageError, match=re.escape(why)):
            enumerate_space(ask(cluster, 8, versions=versions, **model, **liger))


def test_the_trainer_puts_all_reduces_off_only_where_it_is_asked_to(ask):
    """It has no argument for it: a callback of the user's must."""
    cluster = "2x2xa100-80gb"
    trainer, torch = (enumerate_space(ask(cluster, 16, name=n)) for n in ("trainer", "torch"))
    assert Sharding.HYBRID_SHARD in values(trainer, "sharding")
    assert values(trainer, "defer_all_reduce") == {False}
    assert values(torch, "defer_all_reduce") == {False, True}
    asked = enumerate_space(ask(cluster, 16, name="trainer", defer_all_reduce=(False, True)))
    assert {one for one in asked.legal if not one.defer_all_reduce} == set(trainer.legal)
    assert True in values(asked, "defer_all_reduce")


@pytest.mark.parametrize("name", ["torch", "accelerate", "trainer", "nanotron", "deepspeed"])
def test_what_is_enumerated_under_a_restriction_is_as_it_is_checked(ask, name):
    """Each knob, restricted to each of its values."""
    cluster, batch, asked = "2x2xa100-80gb", 8, 0
    whole = enumerate_space(ask(cluster, batch, name=name))
    for knob, told in KNOBS.items():
        kinds = {False, True} if told.kind is bool else values(whole, knob)
        for value in sorted(kinds):
            question = ask(cluster, batch, name=name, **{knob: (value,)})
            try:
                legal = enumerate_space(question).legal
            except UsageError:
                assert value not in values(whole, knob)
                continue
            asked += 1
            for one in legal:
                assert check_settings(question, one, given=tuple(KNOBS)) == one, (knob, value)
    assert asked > 15


@given(
    batch=st.integers(1, 96),
    cluster=st.sampled_from(["1xa100-80gb", "cpu:2", "8xa100-80gb", "2x4xh100-80gb", "cpu:6"]),
    name=st.sampled_from(["torch", "accelerate", "trainer", "nanotron", "deepspeed"]),
)
@settings(max_examples=examples(40))
def test_legal_settings_are_canonical_and_make_the_global_batch(ask, batch, cluster, name):
    question = ask(cluster, batch, name=name)
    for one in legal_or_none(question):
        ranks = one.data_parallel_size(question.cluster.world_size)
        assert one.micro_batch_size * one.gradient_accumulation_steps * ranks == batch
        assert check_settings(question, one, given=("gradient_accumulation_steps",)) == one


def legal_or_none(question):
    """Nothing only where the global batch is what is refused."""
    try:
        return enumerate_space(question).legal
    except UsageError as error:
        if error.field != "global_batch_size":
            raise
        return ()


def test_settings_are_counted_up_to_a_number(ask):
    for name in ["torch", "accelerate", "trainer", "nanotron", "deepspeed"]:
        for cluster in ["1xa100-80gb", "8xa100-80gb", "3x4xh100-80gb"]:
            question = ask(cluster, 48, name=name)
            whole = len(enumerate_space(question).legal)
            assert count_settings(question, whole) == whole
            assert count_settings(question, 10**9) == whole
            assert count_settings(question, 5) == 6
            impossible = ask(cluster, 48, name=name, micro_batch_size=(5,))
            assert count_settings(impossible, 5) == 0


def test_context_parallelism_is_searched_where_asked_for_and_shards_over_its_ranks(ask):
    assert values(enumerate_space(ask(batch=8)), "cp_size") == {1}
    for name in ("torch", "accelerate", "trainer"):
        found = enumerate_space(ask(batch=8, name=name, cp_size=(1, 2, 8), fused_loss=(False,)))
        assert values(found, "cp_size") == {1, 2, 8}
        for one in found.legal:
            assert (
                one.micro_batch_size * one.gradient_accumulation_steps * 8
                == 8 * one.model_parallel_size
            )
            if one.cp_size > 1:
                assert one.sharding in ("full_shard", "shard_grad_op")
                assert one.tp_size == 1
                assert one.activation_checkpointing != "selective"
        alone = [s for s in found.legal if s.cp_size == 8]
        assert {s.sync_each_batch for s in alone} == {True, False}  # its ranks reduce gradients


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"name": "nanotron"}, "torch's ring attention"),
        ({"name": "deepspeed"}, "torch's ring attention"),
        ({"name": "accelerate", "versions": {"accelerate": "1.9.0"}}, "no ParallelismConfig"),
        (
            {"name": "trainer", "versions": {"transformers": "4.57.1", "accelerate": "1.15.0"}},
            "5.0",
        ),
        ({"cluster": "cpu:2", "name": "torch"}, "kernels for GPUs alone"),
        ({"config": {"model_type": "mistral", "sliding_window": 128}}, "layers with a window"),
        ({"config": {"attention_dropout": 0.1}}, "a random stream of its own"),
        ({"name": "torch", "cp_size": (3,)}, "must divide half of the sequence_length (1024)"),
        ({"name": "torch", "cp_size": (16,)}, "must divide GPUs (8)"),
    ],
)
def test_context_parallelism_that_cannot_be_had_is_refused_with_the_reason(ask, asked, said):
    with pytest.raises(UsageError) as caught:
        enumerate_space(ask(**{"batch": 16, "cp_size": (2,), **asked}))
    assert caught.value.field == "cp_size"
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("sharding=ddp,cp_size=2", "sharding", "one of shard_grad_op, full_shard"),
        ("sharding=full_shard,cp_size=2,tp_size=2", "tp_size", "both are not predicted"),
        ("sharding=hybrid_shard,cp_size=4", "sharding", "divide the 4 GPUs of a node"),
        ("sharding=full_shard,cp_size=2,activation_checkpointing=selective",
         "activation_checkpointing", "not what is kept"),
        ("sharding=full_shard,cp_size=2,gradient_accumulation_steps=2",
         "gradient_accumulation_steps", "must be 4"),
    ],
)  # fmt: skip
def test_what_does_not_go_beside_context_parallelism(ask, text, field, said):
    with pytest.raises(UsageError) as caught:
        check_settings(ask("2x4xa100-80gb", 16), parse_settings(text))
    assert caught.value.field == field
    assert said in str(caught.value)


def test_pipelines_are_nanotrons_and_never_starve(ask):
    space = enumerate_space(ask(name="nanotron", batch=16))
    assert values(space, "pp_size") == {1, 2, 4, 8}
    assert values(space, "sharding") == {Sharding.DDP, Sharding.ZERO1}
    assert values(space, "tp_recompute_allgather") == {False, True}
    assert values(space, "sync_each_batch") == {False}
    assert all(s.gradient_accumulation_steps >= s.pp_size - 1 for s in space.legal)
    assert "nanotron always" in why(space, "sync_each_batch")
    both = [s for s in space.legal if s.tp_size > 1 and s.pp_size > 1]
    assert both
    assert all(8 % (s.tp_size * s.pp_size) == 0 for s in both)


def test_no_tensor_parallelism_without_a_verified_plan(ask):
    for model, reason in [
        ({"only": GPT2}, "gpt2 fuses q, k and v"),
        ({"config": {"model_type": "phi3"}}, "phi3 fuses q, k and v"),
        ({"config": {"model_type": "gemma"}}, "gemma has no verified tensor-parallel plan"),
        ({"config": {"attention_dropout": 0.1}}, "attention_dropout is 0.1, and each rank"),
    ]:
        space = enumerate_space(ask(**model))
        assert values(space, "tp_size") == {1}
        assert why(space, "tp_size").startswith(f"tp_size is 1: {reason}")
        assert "tp_size 1" in why(space, "tp_recompute_allgather")
    asked = ask(only=GPT2)
    ways = replace(asked.workload, tensor_parallel=TensorParallel.GATHERED_LOGITS)
    space = enumerate_space(replace(asked, workload=ways))
    assert "tensor_parallel gathered_logits has no effect" in why(space, "tp_size")


def test_a_restriction_that_nothing_can_meet_is_refused(ask):
    for knobs, words in [
        ({"name": "accelerate", "tp_size": (2,), "only": GPT2}, "tp_size: got '2'; cannot be had"),
        ({"tp_size": (1,), "tp_recompute_allgather": (True,)}, "tp_recompute_allgather: got 'tr"),
        ({"pp_size": (2,)}, "pp_size: got '2'; cannot be had here: pipeline stages"),
    ]:
        with pytest.raises(UsageError, match=words):
            enumerate_space(ask(**knobs))


def test_accelerate_and_the_trainer_split_where_transformers_shards_beside(ask):
    def found(sync="", **versions):
        name = "trainer" if sync else "accelerate"
        return enumerate_space(ask("8xa100-80gb", 16, name=name, versions=versions))

    new = {"accelerate": "1.13.0", "transformers": "5.21.0"}
    for versions, reason in [
        ({"accelerate": "1.9.0"}, "before 1.10 has no ParallelismConfig"),
        ({"accelerate": "1.12.0"}, "a class that transformers has no more since 5.1"),
        ({"transformers": "5.20.2"}, "leave the embedding whole on every rank"),
    ]:
        space = found(**new | versions)
        assert values(space, "tp_size") == {1}
        assert reason in why(space, "tp_size")
    space = found(**new)
    split = [one for one in space.legal if one.tp_size > 1]
    assert {one.tp_size for one in split} == {2, 4}  # 8 would leave nothing to shard over
    assert {one.sharding for one in split} == {Sharding.FULL_SHARD}
    assert {one.sync_each_batch for one in split} == {True}
    assert "is true with full_shard and tp_size above 1: " in why(space, "sync_each_batch")
    alone = enumerate_space(ask("1xa100-80gb", 16))
    for knob in ("sharding", "sync_each_batch"):
        assert "it acts with two data-parallel ranks or more" in why(alone, knob)
    for transformers, syncs in (("5.22.2", {True}), ("5.23.0", {False, True})):
        legal = found("trainer", **new | {"transformers": transformers}).legal
        assert {one.sync_each_batch for one in legal if one.tp_size > 1} == syncs
    asked = ask("8xa100-80gb", 16, name="accelerate")
    stored = asked.as_dict()  # as before it could split
    assert "tensor_parallel" not in stored["workload"]
    assert Question.from_dict(stored) == asked
    assert asked.workload.tensor_parallel is TensorParallel.GATHERED_LOGITS
    for written, field, words in [
        ("sharding=full_shard,tp_size=8", "tp_size", "the embedding's gradient whole"),
        ("sharding=shard_grad_op,tp_size=2", "sharding", "it must be full_shard"),
        ("sharding=ddp,tp_size=2", "sharding", "takes no DTensor parameters"),
        ("sharding=full_shard,tp_size=2,cpu_offload=true", "cpu_offload", "is not probed here"),
    ]:
        with pytest.raises(UsageError) as caught:
            check_settings(asked, parse_settings(written))
        assert (caught.value.field, words in caught.value.allowed) == (field, True), written
    narrow = replace(asked.workload, precision=Precision.BF16_MIXED, reduce_dtype=ReduceDtype.BF16)
    with pytest.raises(UsageError, match="--reduce-dtype fp32"):
        refused = replace(asked, workload=narrow)
        check_settings(refused, parse_settings("sharding=full_shard,tp_size=2"))


# -- versions decide --------------------------------------------------------------------------


def sync_by_sharding(space):
    found = {}
    for one in space.legal:
        if one.gradient_accumulation_steps > 1:
            found.setdefault(one.sharding, set()).add(one.sync_each_batch)
    return found


def test_accelerate_1_10_always_syncs_under_fsdp2(ask):
    space = enumerate_space(ask(name="accelerate", versions={"accelerate": "1.10"}))
    assert sync_by_sharding(space) == {
        Sharding.DDP: {False, True},
        Sharding.SHARD_GRAD_OP: {True},
        Sharding.FULL_SHARD: {True},
    }
    assert "sync_each_batch is true with full_shard, shard_grad_op" in why(space, "sync_each_batch")
    today = enumerate_space(ask(name="accelerate"))
    assert set(map(frozenset, sync_by_sharding(today).values())) == {frozenset({False, True})}
    assert len(today.legal) > len(space.legal)


def test_the_ladder_of_checkpointing_is_what_the_stack_can_be_told(ask):
    knob, plain = "activation_checkpointing", {"none", "full"}
    for name, versions, more in [
        ("torch", {}, {"selective", "every_2"}),
        ("accelerate", {}, {"selective", "every_2"}),
        ("accelerate", {"torch": "2.10", "transformers": "4.52"}, set()),
        ("trainer", {}, {"every_2"}),
        ("trainer", {"transformers": "5.16"}, {"every_2"}),
        ("trainer", {"transformers": "5.15"}, set()),
        ("nanotron", {}, set()),
    ]:
        assert values(enumerate_space(ask(name=name, versions=versions)), knob) == plain | more
    offload = {knob: (Checkpointing.OFFLOAD,)}
    for name in ("torch", "accelerate", "trainer"):
        assert values(enumerate_space(ask(name=name, **offload)), knob) == {"offload"}
        with pytest.raises(UsageError, match=r"cannot be told where their inputs wait; 5\.17"):
            enumerate_space(ask(name=name, versions={"transformers": "5.16"}, **offload))
    with pytest.raises(UsageError, match="device and host memory of CPUs are one"):
        enumerate_space(ask(cluster="cpu:2", **offload))
    with pytest.raises(UsageError, match="no argument of the Trainer"):
        enumerate_space(ask(name="trainer", activation_checkpointing=(Checkpointing.SELECTIVE,)))
    with pytest.raises(UsageError, match="with tp_size 8 it must be one of none, every_2, full, "):
        split = Settings(tp_size=8, activation_checkpointing=Checkpointing.SELECTIVE)
        check_settings(ask(), split)


def test_accelerate_0_30_steps_too_often_when_it_syncs(ask):
    question = ask(name="accelerate", versions={"accelerate": "0.30"})
    space = enumerate_space(question)
    assert set(map(frozenset, sync_by_sharding(space).values())) == {frozenset({False})}
    false, true = [
        inactive.why for inactive in space.dead_knobs if inactive.knob == "sync_each_batch"
    ]
    assert false.startswith("sync_each_batch is false with gradient_accumulation_steps above 1: ")
    assert "optimizer step after every micro-batch" in false
    assert true.startswith("sync_each_batch is true: with gradient_accumulation_steps 1 there is")
    asked = enumerate_space(
        ask(name="accelerate", versions={"accelerate": "0.30"}, sync_each_batch=(True,))
    )
    assert values(asked, "gradient_accumulation_steps") == {1}


def test_the_trainer_that_skips_the_wrong_sync_is_left_without_accumulation(ask):
    versions = {"transformers": "4.46.2", "accelerate": "1.0"}
    space = enumerate_space(ask(name="trainer", versions=versions))
    assert values(space, "gradient_accumulation_steps") == {1}
    assert "gradient_accumulation_steps is 1" in why(space, "sync_each_batch")


# -- errors -----------------------------------------------------------------------------------


def test_restrictions_that_leave_nothing(ask):
    for cluster, knobs, field, words in [
        ("8xa100-80gb", {"tp_size": (3,)}, "tp_size", "heads (32) and kv_heads (8)"),
        ("8xa100-80gb", {"tp_size": (16,)}, "tp_size", "kv_heads (8) and gpus_per_node (8)"),
        ("8xa100-80gb", {"sharding": ("zero1",)}, "sharding", "torch has ddp"),
        ("8xa100-80gb", {"sharding": ("hybrid_shard",)}, "sharding", "more than one node"),
        ("8xa100-80gb", {"micro_batch_size": (5,)}, "micro_batch_size", "allows 1, 2, 4, 8"),
        ("cpu:2", {"cpu_offload": (True,)}, "cpu_offload", "refused on CPUs"),
        (
            "8xa100-80gb",
            {"tp_size": (2,), "sharding": ("ddp",)},
            "sharding",
            "allows full_shard, shard_grad_op (or lift the restriction of tp_size)",
        ),
        (
            "8xa100-80gb",
            {"tp_size": (1,), "micro_batch_size": (8,), "gradient_accumulation_steps": (8,)},
            "gradient_accumulation_steps",
            "allows 1",
        ),
    ]:
        question = ask(cluster, **knobs)
        with pytest.raises(UsageError) as caught:
            enumerate_space(question)
        assert caught.value.field == field
        assert words in caught.value.allowed


def test_a_batch_that_nothing_makes(ask):
    config = {"model_type": "gemma"}
    with pytest.raises(UsageError) as caught:
        enumerate_space(ask(batch=12, config=config))
    assert caught.value.field == "global_batch_size"
    assert "8 (at tp_size 1); nearest: 8 or 16" in caught.value.allowed
    assert 2 in values(enumerate_space(ask(batch=12)), "tp_size")
    with pytest.raises(
        UsageError, match="tp_size: got '1'; leaves no legal settings; the rest"
    ) as why:
        enumerate_space(ask(batch=12, tp_size=(1,)))
    assert "a multiple of 8: 8 or 16" in why.value.allowed


# -- facts shared with the probe program ------------------------------------------------------


def test_the_verified_model_types_are_those_of_the_probe_program():
    from tuner.space import NO_TENSOR_PARALLEL, NO_TENSOR_PARALLEL_WITH, TENSOR_PARALLEL_MODEL_TYPES
    from workers.probe import tensor_parallel

    assert tensor_parallel.VERIFIED_MODEL_TYPES == TENSOR_PARALLEL_MODEL_TYPES
    assert tensor_parallel._REFUSED.keys() == NO_TENSOR_PARALLEL_WITH.keys()
    assert not NO_TENSOR_PARALLEL.keys() & TENSOR_PARALLEL_MODEL_TYPES


def test_what_differs_in_one_knob_reduces_as_the_framework_does_by_itself(ask):
    """Where one micro-batch becomes several, accelerate puts reductions off, and torch does not."""
    for name, each in (("accelerate", False), ("torch", True)):
        question = ask("cpu:2", 8, name=name, sharding=("ddp",))
        space = enumerate_space(question)
        one = next(s for s in space.legal if s.gradient_accumulation_steps == 1)
        puts_off = question.framework.puts_off
        changed = space.changed(one, "micro_batch_size", puts_off=puts_off)
        assert space.legal[changed[one.micro_batch_size]] == one
        other = space.legal[changed[1]]
        assert other.sync_each_batch is each
        back = space.changed(other, "micro_batch_size", puts_off=puts_off)
        assert space.legal[back[one.micro_batch_size]] == one
