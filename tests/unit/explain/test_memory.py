from dataclasses import dataclass

import pytest

from tests.questions import question_about
from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Basis
from tuner.cost.memory.step import step_memory
from tuner.explain.memory import memory_facts
from tuner.space import enumerate_space
from tuner.text import show

GIB = 2**30
CODELLAMA = "sharding=full_shard,activation_checkpointing=full,gradient_accumulation_steps=16"


def question(
    model="codellama-34b", cluster="8xa100-80gb", stack="torch", batch=128, sequence_length=1024
):
    return question_about(model, cluster, stack, tokens=sequence_length, batch=batch)


def changes(settings, of, profiles=None):
    found = memory_facts(of, parse_settings(str(settings)), profiles or {})
    return [one for one in found if one.kind == "knob_predicted"]


def told(of):
    return of.values["changes"][0]


def one(found, knob, value):
    (of,) = (c for c in found if (told(c).knob, show(told(c).value)) == (knob, value))
    return of


def sentences(text, of, profiles=None):
    return list(map(str, memory_facts(of, parse_settings(text), profiles or {})))


def test_the_main_knob():
    change = one(changes(CODELLAMA, question()), "sync_each_batch", "false")
    # whole gradients of 34 billion parameters in bf16, less what the peak of the optimizer hides
    assert told(change).memory_bytes / GIB == pytest.approx(92.0 - 39.3, rel=0.03)
    text = str(change)
    assert text.startswith("`sync_each_batch=false` would add 5")
    assert "GiB: FSDP keeps the unsharded gradients until the last micro-batch" in text


def test_differences_are_those_of_the_arithmetic():
    of, text = question("llama-3.1-8b", "8xh100-80gb"), "sharding=full_shard,micro_batch_size=4"
    text += ",gradient_accumulation_steps=4"
    before = step_memory(of.workload, parse_settings(text), of.cluster).total_bytes
    for change in changes(text, of):
        if told(change).knob not in ("activation_checkpointing", "sharding"):
            continue
        other = parse_settings(f"{text},").as_dict() | {told(change).knob: told(change).value}
        after = step_memory(of.workload, Settings.from_dict(other), of.cluster).total_bytes
        assert told(change).memory_bytes == pytest.approx(after - before)


def test_each_live_knob_is_told_once_for_each_neighbor():
    text = "sharding=full_shard,tp_size=2,tp_recompute_allgather=true,micro_batch_size=2"
    of = question("llama-3.1-8b", "2x8xh100-80gb")
    found = changes(f"{text},gradient_accumulation_steps=8", of)
    assert [(told(c).knob, show(told(c).value)) for c in found] == [
        ("sync_each_batch", "false"),
        ("tp_recompute_allgather", "false"),
        ("activation_checkpointing", "full"),
        ("sharding", "shard_grad_op"),
        ("sharding", "hybrid_shard"),
        ("micro_batch_size", "4"),
        ("micro_batch_size", "1"),
        ("tp_size", "4"),
        ("tp_size", "1"),
        ("optimizer", "adamw_8bit"),
    ]
    signs = [told(c).memory_bytes > 0 for c in found]
    assert signs == [True, True, False, True, True, True, False, False, True, False]


GROWS = ("twice as many", "is kept for backward", "not only its input", "stay from forward")
GROWS = (*GROWS, "until the last micro-batch", "every rank holds all", " more of ")
SHRINKS = ("half as many", "computes the rest again", "gathers the input", "only while it computes")
SHRINKS = (*SHRINKS, "at once, and keeps its own shard", " less of ")


def test_no_reason_contradicts_its_sign():
    for model in ["llama-3.1-8b", "mixtral-8x7b", "stories15m"]:
        for cluster in ["8xh100-80gb", "4x8xa100-80gb", "cpu:2"]:
            for batch in [32]:
                of = question(model, cluster, batch=batch, sequence_length=256)
                legal = enumerate_space(of).legal
                for settings in legal[:: max(1, len(legal) // 4)]:
                    for change in changes(settings, of):
                        wrong = SHRINKS if told(change).memory_bytes > 0 else GROWS
                        reason = change.values["reason"]
                        assert not any(words in reason for words in wrong), str(change)
                        assert bool(reason) is bool(told(change).memory_bytes)


@dataclass(frozen=True)
class FakePeak:
    total_bytes: int
    phase: str = "backward"

    @property
    def by_phase(self):
        return {"forward": 1, "loss": 1, "backward": self.total_bytes, "optimizer": 1}

    @property
    def breakdown(self):
        return {"activations": GIB, "gradients_unsharded": self.total_bytes - GIB}


@dataclass(frozen=True)
class FakeProfile:
    gib: int

    @property
    def versions(self):
        return {}

    def peak(self, micro_batch_size, accumulation):
        return FakePeak(total_bytes=self.gib * micro_batch_size * GIB)


def test_both_figures_are_of_one_basis():
    sync = parse_settings(CODELLAMA).layout
    no_sync = parse_settings(f"{CODELLAMA},sync_each_batch=false").layout
    profiles = {sync: FakeProfile(40), no_sync: FakeProfile(95)}
    found = changes(CODELLAMA, question(), profiles)
    both = one(found, "sync_each_batch", "false")
    assert both.values["basis"] is Basis.DRY_RUN
    # blocks of each phase add a bit
    assert told(both).memory_bytes == pytest.approx(55 * GIB, rel=0.01)
    assert str(both).startswith("`sync_each_batch=false` would add 54.8 GiB: FSDP")
    larger = one(found, "micro_batch_size", "2")
    assert larger.values["basis"] is Basis.DRY_RUN
    assert told(larger).memory_bytes == pytest.approx(40 * GIB, rel=0.01)
    only_one = one(found, "activation_checkpointing", "none")
    assert only_one.values["basis"] is Basis.ARITHMETIC
    bare = one(changes(CODELLAMA, question()), "activation_checkpointing", "none")
    assert told(only_one).memory_bytes == told(bare).memory_bytes
    assert "(both by arithmetic)" in str(only_one)
    first, *_ = sentences(CODELLAMA, question(), profiles)
    assert first == (
        "By a dry run the peak of 40.5 GiB is in backward: 39.0 GiB of unsharded gradients, 1.00"
        " GiB of activations and 471 MiB of blocks larger than their tensors, and the rest is less."
    )
