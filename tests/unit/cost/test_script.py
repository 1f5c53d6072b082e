"""What a script holds, against a step of one that was run on tensors without memory.

The figures are of rank 0 of 8: Llama-2-7B, FSDP1 with bf16 mixed precision, layers checkpointed
from outside, sequence 4096, micro-batch 4, transformers 4.31, the second step.
"""

from dataclasses import replace

import pytest

from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Category, Phase
from tuner.core.workload import Loss, Precision, Workload
from tuner.cost.script import Script, script_bytes
from tuner.model import published_model as read

GIB = 2**30
CHECKPOINTED = "sharding=full_shard,micro_batch_size=4,activation_checkpointing=full"


def stack(transformers):
    versions = {"accelerate": "0.24.0", "torch": "2.1.0", "transformers": transformers}
    return Framework(name=FrameworkName.ACCELERATE, versions=versions)


def llama(precision=Precision.BF16_MIXED):
    return Workload(
        model=read("llama-2-7b"), sequence_length=4096, global_batch_size=32, precision=precision
    )


def extra_gib(script, transformers="4.38.2", settings=None, precision=Precision.BF16_MIXED):
    candidate = parse_settings(CHECKPOINTED) if settings is None else settings
    found = script_bytes(
        llama(precision), candidate, candidate.tp_size, stack(transformers), script
    )
    return {phase: sum(found[phase].values()) / GIB for phase in Phase}


BOTH = (False, True)
STEP_GIB = {Phase.LOSS: 20.573, Phase.BACKWARD: 20.950, Phase.OPTIMIZER: 15.877}
"""Peaks of the step of a script that keeps nothing."""


def test_each_phase_grows_as_in_the_step_that_was_run():
    for script, peaks_gib in [
        (Script(use_cache=True), (28.573, 20.950, 15.877)),
        (Script(keeps_outputs=True), (22.526, 22.903, 17.830)),
        (Script(use_cache=True, keeps_outputs=True), (38.526, 30.903, 25.830)),
    ]:
        plain = extra_gib(Script())
        kept = extra_gib(script)
        for (phase, peak), grown in zip(STEP_GIB.items(), peaks_gib, strict=True):
            assert kept[phase] - plain[phase] == pytest.approx(grown - peak, abs=0.002)


def test_a_root_unit_keeps_the_embedding_gathered():
    for settings, phase, gib in [
        (None, Phase.BACKWARD, 0.244),  # 32,000 x 4,096 in bf16
        (None, Phase.OPTIMIZER, 0.0),
        (parse_settings("sharding=ddp"), Phase.BACKWARD, 0.0),
    ]:
        plain, more = (extra_gib(Script(one_root_unit=one), settings=settings) for one in BOTH)
        assert more[phase] - plain[phase] == pytest.approx(gib, abs=0.001)


def test_before_accelerate_1_14_embedding_and_head_are_the_roots():
    """As counted on two ranks: in backward both stay gathered, and the head's gradient waits."""
    both, own = "sharding=full_shard", "sharding=shard_grad_op"
    late = "gradient_accumulation_steps=2,sync_each_batch=false"
    for accelerate, text, matrices in [
        ("1.13.0", both, 3),
        ("1.13.0", f"{both},{late}", 2),
        ("1.13.0", own, 2),
        ("1.13.0", "sharding=ddp", 0),
        ("1.14.0", both, 0),
    ]:
        versions = {"accelerate": accelerate, "torch": "2.13.0", "transformers": "5.23.0"}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=versions)
        found = script_bytes(llama(), parse_settings(text), 1, framework, Script())
        sizes = found[Phase.BACKWARD].values()
        assert sum(sizes) == matrices * 2 * 32000 * 4096, (accelerate, text)


def test_old_losses_copy_logits():
    logits_gib = 4 * 4096 * 32000 / GIB
    assert extra_gib(Script(), "4.48.3")[Phase.LOSS] == pytest.approx(4 * logits_gib)
    assert extra_gib(Script(), "4.45.2")[Phase.LOSS] == pytest.approx(2 * logits_gib)
    in_fp32 = extra_gib(Script(), "4.45.2", precision=Precision.FP32)
    assert in_fp32[Phase.LOSS] == pytest.approx(4 * logits_gib)
    own = replace(llama(), loss=Loss.OWN_DTYPE)
    found = script_bytes(own, parse_settings(CHECKPOINTED), 1, stack("4.45.2"), Script())
    assert not any(size for sizes in found.values() for size in sizes.values())


def test_parts_of_layers_that_are_checkpointed_keep_their_inputs():
    """Three more tensors of sequence x hidden size per layer; none up to 1.7 and from 1.15 on."""
    script, settings = Script(fsdp_checkpointing=True), parse_settings(CHECKPOINTED)
    for accelerate, kept in (("1.7.0", 0), ("1.8.0", 3), ("1.14.0", 3), ("1.15.0", 0)):
        versions = {"accelerate": accelerate, "torch": "2.13.0", "transformers": "5.23.0"}
        framework = Framework(name=FrameworkName.ACCELERATE, versions=versions)
        found = script_bytes(llama(), settings, 1, framework, script)
        for phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
            assert found[phase][Category.ACTIVATIONS] == kept * 32 * 4 * 4096 * 4096 * 2
        assert sum(found[Phase.OPTIMIZER].values()) == 0


def test_releases_that_lay_queries_out_anew_keep_heads_twice_where_nothing_is_checkpointed():
    each = 32 * 4 * 4096 * 4096 * 2  # 32 layers, 4 sequences of 4,096, 4,096 channels in bf16
    for transformers, how, precision, kept in [
        ("4.47.1", "none", Precision.BF16, 0),
        ("4.52.4", "none", Precision.BF16, each),
        ("4.52.4", "none", Precision.BF16_MIXED, each),
        ("4.52.4", "every_2", Precision.BF16, each / 2),
        ("4.52.4", "full", Precision.BF16, 0),
        ("4.52.4", "none", Precision.FP32, 0),
        ("4.56.0", "none", Precision.BF16, 0),
    ]:
        settings = parse_settings(f"micro_batch_size=4,activation_checkpointing={how}")
        found = script_bytes(llama(precision), settings, 1, stack(transformers), Script())
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert found[phase][Category.ACTIVATIONS] == kept, (transformers, how, precision)
        assert found[Phase.OPTIMIZER][Category.ACTIVATIONS] == 0
